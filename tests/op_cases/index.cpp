// Rows of the index family.
#include "ops/index.h"

#include "tests/op_cases/op_case.h"
#include "tests/reference/index.h"

namespace polygrad::testing {
namespace {

using Sizes = std::vector<std::int64_t>;
using reference::Array;

OpInput ids_input(const Sizes& shape, std::int64_t bound) {
  return {.shape = shape, .fill = Fill::ids, .bound = bound};
}

OpRow gather_row(const std::string& name, const Sizes& shape, int dim, std::int64_t picked) {
  OpRow row;
  row.op = "gather";
  row.name = name;
  Sizes index = shape;
  index[static_cast<std::size_t>(dim)] = picked;
  row.inputs = {{shape}, ids_input(index, shape[static_cast<std::size_t>(dim)])};
  row.run = [dim](const Tensors& t) { return gather(t[0], dim, t[1]); };
  row.reference = [dim](const Arrays& a) { return reference::gather(a[0], dim, a[1]); };
  row.zero_gradient = Array::count(shape) == 0 || picked == 0;
  return row;
}

OpRow index_select_row(const std::string& name, const Sizes& shape, int dim, std::int64_t picked) {
  OpRow row;
  row.op = "index_select";
  row.name = name;
  row.inputs = {{shape}, ids_input({picked}, shape[static_cast<std::size_t>(dim)])};
  row.run = [dim](const Tensors& t) { return index_select(t[0], dim, t[1]); };
  row.reference = [dim](const Arrays& a) { return reference::index_select(a[0], dim, a[1]); };
  row.zero_gradient = Array::count(shape) == 0 || picked == 0;
  return row;
}

OpRow embedding_row(const std::string& name, const Sizes& weight, const Sizes& ids) {
  OpRow row;
  row.op = "embedding";
  row.name = name;
  row.inputs = {{weight}, ids_input(ids, weight[0])};
  row.run = [](const Tensors& t) { return embedding(t[0], t[1]); };
  row.reference = [](const Arrays& a) { return reference::embedding(a[0], a[1]); };
  row.zero_gradient = Array::count(ids) == 0 || Array::count(weight) == 0;
  return row;
}

OpRow one_hot_row(const std::string& name, const Sizes& ids, std::int64_t classes) {
  OpRow row;
  row.op = "one_hot";
  row.name = name;
  row.inputs = {ids_input(ids, classes)};
  row.run = [classes](const Tensors& t) { return one_hot(t[0], classes); };
  row.reference = [classes](const Arrays& a) { return reference::one_hot(a[0], classes); };
  row.gradient = false;
  return row;
}

OpRow masked_fill_row(const std::string& name, const Sizes& shape, const Sizes& mask, double value) {
  OpRow row;
  row.op = "masked_fill";
  row.name = name;
  row.inputs = {{shape}, {.shape = mask, .fill = Fill::mask}};
  row.run = [value](const Tensors& t) { return masked_fill(t[0], t[1], value); };
  row.reference = [value](const Arrays& a) { return reference::masked_fill(a[0], a[1], value); };
  row.zero_gradient = Array::count(shape) == 0;
  return row;
}

}  // namespace

std::vector<OpRow> index_rows() {
  return {
      gather_row("columns", {7, 4}, 1, 3),
      gather_row("rows, with repetition", {3, 5}, 0, 7),
      gather_row("the middle of three", {2, 5, 3}, 1, 4),
      gather_row("one", {1, 1}, 1, 1),
      gather_row("more columns than a task", {2, 3, 70}, 1, 2),
      gather_row("nothing picked", {2, 3}, 1, 0),
      gather_row("no rows", {0, 3}, 1, 2),
      index_select_row("rows", {5, 3}, 0, 7),
      index_select_row("columns", {7, 4}, 1, 2),
      index_select_row("the middle of three", {2, 4, 3}, 1, 6),
      index_select_row("one", {1}, 0, 1),
      index_select_row("nothing picked", {3, 2}, 0, 0),
      index_select_row("empty rows", {3, 0}, 0, 2),
      embedding_row("a sentence", {11, 4}, {7}),
      embedding_row("a batch", {5, 3}, {2, 7}),
      embedding_row("rows wider than a block", {3, 130}, {4}),
      embedding_row("one id, one row", {1, 1}, {1}),
      embedding_row("a scalar id", {4, 3}, {}),
      embedding_row("no ids", {4, 3}, {0}),
      embedding_row("no width", {4, 0}, {3}),
      one_hot_row("labels", {7}, 5),
      one_hot_row("two dimensions", {2, 3}, 4),
      one_hot_row("one class", {1}, 1),
      one_hot_row("no labels", {0}, 3),
      masked_fill_row("same shape", {7, 3}, {7, 3}, -2.5),
      masked_fill_row("a mask for all rows", {4, 6}, {6}, 0),
      masked_fill_row("key mask of attention", {2, 2, 3, 5}, {2, 1, 1, 5}, 1e3),
      masked_fill_row("a scalar mask over one", {8, 1}, {8, 1}, 3),
      masked_fill_row("empty", {0, 4}, {4}, 1),
  };
}

}  // namespace polygrad::testing

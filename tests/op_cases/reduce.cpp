// Rows of the reduce family. The larger ones are cut into several tasks and slices.
#include "ops/reduce.h"

#include "tests/op_cases/op_case.h"
#include "tests/reference/reduce.h"

namespace polygrad::testing {
namespace {

using Sizes = std::vector<std::int64_t>;

std::vector<int> all_dims(const Sizes& shape) {
  std::vector<int> dims;
  for (std::size_t i = 0; i < shape.size(); ++i) dims.push_back(static_cast<int>(i));
  return dims;
}

OpRow row_of(const std::string& op, const std::string& name, const OpInput& x, std::function<Tensor(const Tensor&)> run,
             std::function<reference::Array(const reference::Array&)> reference) {
  OpRow row;
  row.op = op;
  row.name = name;
  row.inputs = {x};
  row.run = [run](const Tensors& t) { return run(t[0]); };
  row.reference = [reference](const Arrays& t) { return reference(t[0]); };
  row.zero_gradient = reference::Array::count(x.shape) == 0;
  return row;
}

OpRow sum_row(const std::string& name, const Sizes& shape, const std::vector<int>& dims, bool keepdim) {
  return row_of(
      "sum", name, {shape}, [=](const Tensor& x) { return sum(x, dims, keepdim); },
      [=](const reference::Array& x) { return reference::sum(x, dims, keepdim); });
}

OpRow mean_row(const std::string& name, const Sizes& shape, const std::vector<int>& dims, bool keepdim) {
  return row_of(
      "mean", name, {shape}, [=](const Tensor& x) { return mean(x, dims, keepdim); },
      [=](const reference::Array& x) { return reference::mean(x, dims, keepdim); });
}

OpRow to_shape_row(const std::string& name, const Sizes& from, const Sizes& shape) {
  return row_of(
      "sum_to_shape", name, {from}, [=](const Tensor& x) { return sum_to_shape(x, Shape(shape)); },
      [=](const reference::Array& x) { return reference::sum_to_shape(x, shape); });
}

OpRow amax_row(const std::string& name, const Sizes& shape, int dim, bool keepdim) {
  return row_of(
      "amax", name, {shape, Fill::distinct}, [=](const Tensor& x) { return amax(x, dim, keepdim); },
      [=](const reference::Array& x) { return reference::amax(x, dim, keepdim); });
}

OpRow argmax_row(const std::string& name, const Sizes& shape, int dim, Fill fill) {
  OpRow row = row_of(
      "argmax", name, {shape, fill}, [=](const Tensor& x) { return argmax(x, dim); },
      [=](const reference::Array& x) { return reference::argmax(x, dim); });
  row.gradient = false;
  return row;
}

OpRow topk_row(const std::string& name, const Sizes& shape, std::int64_t k, bool values) {
  OpRow row = row_of(
      "topk", name + (values ? ": values" : ": indices"), {shape},
      [=](const Tensor& x) { return values ? topk(x, k).first : topk(x, k).second; },
      [=](const reference::Array& x) { return values ? reference::topk_values(x, k) : reference::topk_indices(x, k); });
  row.gradient = false;
  return row;
}

}  // namespace

std::vector<OpRow> reduce_rows() {
  std::vector<OpRow> rows;
  for (const Sizes& shape : {Sizes{}, Sizes{1}, Sizes{19}, Sizes{7, 5}, Sizes{2, 3, 4}}) {
    const std::string name = "all of " + to_string(Shape(shape));
    rows.push_back(row_of(
        "sum", name, {shape}, [](const Tensor& x) { return sum(x); },
        [shape](const reference::Array& x) { return reference::sum(x, all_dims(shape), false); }));
    rows.push_back(row_of(
        "mean", name, {shape}, [](const Tensor& x) { return mean(x); },
        [shape](const reference::Array& x) { return reference::mean(x, all_dims(shape), false); }));
  }
  rows.push_back(row_of(
      "sum", "nothing is 0", {{0}}, [](const Tensor& x) { return sum(x); },
      [](const reference::Array& x) { return reference::sum(x, {0}, false); }));
  rows.push_back(sum_row("over a size of 0", {3, 0}, {1}, false));
  rows.push_back(sum_row("no rows", {0, 3}, {1}, true));

  for (auto* make : {sum_row, mean_row}) {
    rows.push_back(make("7 rows, each", {7, 5}, {1}, false));
    rows.push_back(make("7 rows, together", {7, 5}, {0}, false));
    rows.push_back(make("columns, kept", {7, 5}, {0}, true));
    rows.push_back(make("rows longer than the lanes", {3, 53}, {1}, true));
    rows.push_back(make("the middle", {2, 3, 4}, {1}, false));
    rows.push_back(make("the outer two of four", {2, 3, 2, 2}, {0, 2}, false));
    rows.push_back(make("the inner two of four", {2, 3, 2, 2}, {1, 3}, true));
    rows.push_back(make("sizes of one", {1, 3, 1, 2}, {0, 2}, false));
    rows.push_back(make("first and last", {3, 2, 4}, {0, 2}, false));
  }

  rows.push_back(to_shape_row("the same", {2, 3}, {2, 3}));
  rows.push_back(to_shape_row("a row", {7, 5}, {5}));
  rows.push_back(to_shape_row("a column", {7, 5}, {7, 1}));
  rows.push_back(to_shape_row("a scalar", {2, 3}, {}));
  rows.push_back(to_shape_row("leading and inner", {2, 3, 4, 2}, {3, 1, 2}));
  rows.push_back(to_shape_row("nothing to a row", {0, 3}, {3}));

  rows.push_back(amax_row("a vector", {9}, 0, false));
  rows.push_back(amax_row("one element", {1}, 0, true));
  rows.push_back(amax_row("7 rows", {7, 40}, 1, false));
  rows.push_back(amax_row("columns", {7, 5}, 0, true));
  rows.push_back(amax_row("the middle", {2, 5, 3}, 1, false));
  rows.push_back(amax_row("no rows", {0, 3}, 1, false));

  rows.push_back(argmax_row("a vector", {9}, 0, Fill::normal));
  rows.push_back(argmax_row("7 rows", {7, 5}, 1, Fill::normal));
  rows.push_back(argmax_row("the middle", {2, 5, 3}, 1, Fill::normal));
  rows.push_back(argmax_row("no rows", {0, 3}, 1, Fill::normal));

  for (bool values : {true, false}) {
    rows.push_back(topk_row("5 of 9", {9}, 5, values));
    rows.push_back(topk_row("7 rows, 2 of 5", {7, 5}, 2, values));
    rows.push_back(topk_row("all", {2, 3, 4}, 4, values));
    rows.push_back(topk_row("none", {3, 4}, 0, values));
    rows.push_back(topk_row("no rows", {0, 4}, 2, values));
  }
  return rows;
}

}  // namespace polygrad::testing

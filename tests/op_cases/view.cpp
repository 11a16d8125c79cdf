// Rows of the view family.
#include "ops/view.h"

#include "tests/op_cases/op_case.h"
#include "tests/reference/view.h"

namespace polygrad::testing {
namespace {

using Sizes = std::vector<std::int64_t>;

OpRow view_row(const std::string& op, const std::string& name, const Sizes& shape,
               std::function<Tensor(const Tensor&)> run,
               std::function<reference::Array(const reference::Array&)> twin) {
  OpRow row;
  row.op = op;
  row.name = name;
  row.inputs = {{shape}};
  row.run = [run](const Tensors& t) { return run(t[0]); };
  row.reference = [twin](const Arrays& a) { return twin(a[0]); };
  row.zero_gradient = reference::Array::count(shape) == 0;
  return row;
}

OpRow reshape_row(const std::string& name, const Sizes& from, const Sizes& asked, const Sizes& to) {
  return view_row(
      "reshape", name, from, [asked](const Tensor& x) { return reshape(x, Shape(asked)); },
      [to](const reference::Array& x) { return reference::reshape(x, to); });
}

OpRow flatten_row(const std::string& name, const Sizes& from, int start, int end, const Sizes& to) {
  return view_row(
      "flatten", name, from, [start, end](const Tensor& x) { return flatten(x, start, end); },
      [to](const reference::Array& x) { return reference::reshape(x, to); });
}

// `order` is the permutation that the transposition is.
OpRow transpose_row(const std::string& name, const Sizes& shape, int a, int b, const std::vector<int>& order) {
  return view_row(
      "transpose", name, shape, [a, b](const Tensor& x) { return transpose(x, a, b); },
      [order](const reference::Array& x) { return reference::permute(x, order); });
}

OpRow permute_row(const std::string& name, const Sizes& shape, const std::vector<int>& order) {
  return view_row(
      "permute", name, shape, [order](const Tensor& x) { return permute(x, order); },
      [order](const reference::Array& x) { return reference::permute(x, order); });
}

OpRow slice_row(const std::string& name, const Sizes& shape, int dim, std::int64_t start, std::int64_t end,
                std::int64_t step = 1) {
  OpRow row = view_row(
      "slice", name, shape, [=](const Tensor& x) { return slice(x, dim, start, end, step); },
      [=](const reference::Array& x) { return reference::slice(x, dim, start, end, step); });
  row.zero_gradient = row.zero_gradient || start == end;
  return row;
}

OpRow select_row(const std::string& name, const Sizes& shape, int dim, std::int64_t index) {
  return view_row(
      "select", name, shape, [=](const Tensor& x) { return select(x, dim, index); },
      [=](const reference::Array& x) { return reference::select(x, dim, index); });
}

OpRow squeeze_row(const std::string& name, const Sizes& shape, int dim, const Sizes& to) {
  return view_row(
      "squeeze", name, shape, [=](const Tensor& x) { return squeeze(x, dim); },
      [to](const reference::Array& x) { return reference::reshape(x, to); });
}

OpRow unsqueeze_row(const std::string& name, const Sizes& shape, int dim, const Sizes& to) {
  return view_row(
      "unsqueeze", name, shape, [=](const Tensor& x) { return unsqueeze(x, dim); },
      [to](const reference::Array& x) { return reference::reshape(x, to); });
}

OpRow expand_row(const std::string& name, const Sizes& from, const Sizes& asked, const Sizes& to) {
  OpRow row = view_row(
      "expand", name, from, [asked](const Tensor& x) { return expand(x, Shape(asked)); },
      [to](const reference::Array& x) { return reference::expand(x, to); });
  row.zero_gradient = row.zero_gradient || reference::Array::count(to) == 0;
  return row;
}

}  // namespace

std::vector<OpRow> view_rows() {
  return {
      reshape_row("to a matrix", {2, 3, 4}, {6, 4}, {6, 4}),
      reshape_row("one size left open", {7, 4}, {2, -1, 7}, {2, 2, 7}),
      reshape_row("splitting", {6, 4}, {2, 3, 2, 2}, {2, 3, 2, 2}),
      reshape_row("sizes of 1 come and go", {1, 3, 1, 4}, {3, 1, 1, 1, 4}, {3, 1, 1, 1, 4}),
      reshape_row("to a scalar", {1, 1}, {}, {}),
      reshape_row("from a scalar", {}, {1, 1}, {1, 1}),
      reshape_row("empty", {0, 3}, {3, 0, 2}, {3, 0, 2}),
      flatten_row("all", {2, 3, 4}, 0, -1, {24}),
      flatten_row("the last two", {2, 3, 7}, 1, 2, {2, 21}),
      flatten_row("one dimension", {2, 3}, -1, -1, {2, 3}),
      flatten_row("a scalar", {}, 0, -1, {1}),
      flatten_row("empty", {2, 0, 3}, 0, 1, {0, 3}),
      transpose_row("a matrix", {3, 7}, 0, 1, {1, 0}),
      transpose_row("counted from the end", {2, 3, 4}, -1, -3, {2, 1, 0}),
      transpose_row("with itself", {2, 3}, 1, 1, {0, 1}),
      transpose_row("one element", {1, 1}, 0, 1, {1, 0}),
      transpose_row("empty", {0, 4}, 0, 1, {1, 0}),
      permute_row("a rotation", {2, 3, 4}, {2, 0, 1}),
      permute_row("the heads of attention", {2, 5, 3, 4}, {0, 2, 1, 3}),
      permute_row("the identity", {7, 2}, {0, 1}),
      permute_row("a scalar", {}, {}),
      permute_row("empty", {3, 0, 2}, {1, 2, 0}),
      slice_row("the middle", {7, 3}, 0, 2, 5),
      slice_row("the last dimension", {2, 7}, 1, 0, 3),
      slice_row("every second", {7, 2}, 0, 1, 7, 2),
      slice_row("every third of the inner", {2, 3, 8}, 2, 0, 8, 3),
      slice_row("all", {1, 4}, 1, 0, 4),
      slice_row("nothing, at the end", {4, 2}, 0, 4, 4),
      slice_row("of nothing", {0, 2}, 0, 0, 0),
      select_row("a row", {7, 3}, 0, 4),
      select_row("a column", {3, 4}, 1, 0),
      select_row("the only one", {1}, 0, 0),
      select_row("of empty rows", {3, 0}, 0, 1),
      squeeze_row("the first", {1, 3, 2}, 0, {3, 2}),
      squeeze_row("the last", {7, 1}, -1, {7}),
      squeeze_row("to a scalar", {1}, 0, {}),
      squeeze_row("empty", {0, 1}, 1, {0}),
      unsqueeze_row("in front", {3, 2}, 0, {1, 3, 2}),
      unsqueeze_row("in the middle", {3, 7}, 1, {3, 1, 7}),
      unsqueeze_row("behind", {3, 2}, -1, {3, 2, 1}),
      unsqueeze_row("a scalar", {}, 0, {1}),
      unsqueeze_row("empty", {0, 2}, 2, {0, 2, 1}),
      expand_row("a column", {3, 1}, {3, 7}, {3, 7}),
      expand_row("a new dimension", {2, 3}, {4, -1, 3}, {4, 2, 3}),
      expand_row("both at once", {1, 3, 1}, {2, 4, 3, 5}, {2, 4, 3, 5}),
      expand_row("nothing to do", {2, 3}, {2, 3}, {2, 3}),
      expand_row("a scalar", {}, {3}, {3}),
      expand_row("to nothing", {1, 2}, {0, 2}, {0, 2}),
      expand_row("of nothing", {0, 1}, {0, 3}, {0, 3}),
  };
}

}  // namespace polygrad::testing

// Rows of the matmul family.
#include "ops/matmul.h"

#include "tests/op_cases/op_case.h"
#include "tests/reference/matmul.h"

namespace polygrad::testing {
namespace {

using Sizes = std::vector<std::int64_t>;

OpRow matmul_row(const std::string& name, const Sizes& a, const Sizes& b) {
  OpRow row;
  row.op = "matmul";
  row.name = name;
  row.inputs = {{a}, {b}};
  row.run = [](const Tensors& t) { return matmul(t[0], t[1]); };
  row.reference = [](const Arrays& t) { return reference::matmul(t[0], t[1]); };
  row.zero_gradient = reference::Array::count(a) == 0 || reference::Array::count(b) == 0;
  return row;
}

// With a bias where `bias` is not empty.
OpRow linear_row(const std::string& op, const std::string& name, const Sizes& x, const Sizes& weight, bool bias) {
  OpRow row;
  row.op = op;
  row.name = name;
  row.inputs = {{x}, {weight}};
  if (bias) row.inputs.push_back({{weight[0]}});
  const bool gelu = op == "linear_gelu";
  row.run = [gelu](const Tensors& t) {
    const Tensor added = t.size() > 2 ? t[2] : Tensor();
    return gelu ? linear_gelu(t[0], t[1], added) : linear(t[0], t[1], added);
  };
  row.reference = [gelu](const Arrays& t) {
    const reference::Array added = t.size() > 2 ? t[2] : reference::Array();
    return gelu ? reference::linear_gelu(t[0], t[1], added) : reference::linear(t[0], t[1], added);
  };
  row.zero_gradient = reference::Array::count(x) == 0 || reference::Array::count(weight) == 0;
  return row;
}

}  // namespace

std::vector<OpRow> matmul_rows() {
  OpRow single = matmul_row("a row and a column", {1, 9}, {9, 1});
  single.narrow_tolerance = 2e-2;  // a single sum, most of which cancels
  std::vector<OpRow> rows = {
      single,
      matmul_row("matrices", {7, 5}, {5, 3}),
      matmul_row("a single number", {1, 1}, {1, 1}),
      matmul_row("a column and a row", {6, 1}, {1, 4}),
      matmul_row("no rows", {0, 4}, {4, 3}),
      matmul_row("an empty sum is zero", {3, 0}, {0, 2}),
      matmul_row("an empty batch", {0, 2, 3}, {3, 4}),
      matmul_row("batch", {4, 3, 5}, {4, 5, 2}),
      matmul_row("batch of a matrix: one large product", {3, 7, 4}, {4, 6}),
      matmul_row("batch of rows and one matrix", {5, 1, 4}, {4, 3}),
      matmul_row("one matrix and a batch", {2, 4}, {3, 4, 5}),
      matmul_row("both sides broadcast", {2, 1, 3, 4}, {1, 3, 4, 2}),
      matmul_row("inner batch broadcast", {2, 3, 3, 2}, {2, 1, 2, 4}),
      matmul_row("a batch of one is broadcast and summed", {1, 3, 2}, {4, 2, 3}),
      matmul_row("five dimensions", {2, 1, 2, 3, 2}, {3, 1, 2, 5}),
  };
  for (const char* op : {"linear", "linear_gelu"}) {
    const std::vector<OpRow> more = {
        linear_row(op, "matrix", {7, 5}, {3, 5}, true),
        linear_row(op, "no bias", {7, 5}, {3, 5}, false),
        linear_row(op, "a vector", {5}, {4, 5}, true),
        linear_row(op, "three dimensions", {2, 7, 4}, {6, 4}, true),
        linear_row(op, "four dimensions, one single", {2, 1, 3, 4}, {3, 4}, true),
        linear_row(op, "sizes of one", {1, 1}, {1, 1}, true),
        linear_row(op, "no rows", {0, 3}, {2, 3}, true),
        linear_row(op, "no features: the bias alone", {4, 0}, {3, 0}, false),
        linear_row(op, "17 rows, 33 columns", {17, 8}, {33, 8}, true),
    };
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

}  // namespace polygrad::testing

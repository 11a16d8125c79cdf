// Rows of the softmax family.
#include "ops/softmax.h"

#include "tests/op_cases/op_case.h"
#include "tests/reference/softmax.h"

namespace polygrad::testing {
namespace {

using Sizes = std::vector<std::int64_t>;

OpRow row_of(bool logarithm, const std::string& name, const Sizes& shape, int dim) {
  OpRow row;
  row.op = logarithm ? "log_softmax" : "softmax";
  row.name = name;
  row.inputs = {{shape}};
  row.run = [=](const Tensors& t) { return logarithm ? log_softmax(t[0], dim) : softmax(t[0], dim); };
  row.reference = [=](const Arrays& t) {
    const int counted = dim < 0 ? dim + static_cast<int>(shape.size()) : dim;
    return logarithm ? reference::log_softmax(t[0], counted) : reference::softmax(t[0], counted);
  };
  row.zero_gradient = reference::Array::count(shape) == 0;
  return row;
}

}  // namespace

std::vector<OpRow> softmax_rows() {
  std::vector<OpRow> rows;
  for (bool logarithm : {false, true}) {
    rows.push_back(row_of(logarithm, "a vector", {9}, 0));
    rows.push_back(row_of(logarithm, "7 rows", {7, 5}, -1));
    rows.push_back(row_of(logarithm, "rows longer than the lanes", {2, 37}, 1));
    rows.push_back(row_of(logarithm, "columns", {7, 5}, 0));
    rows.push_back(row_of(logarithm, "the middle", {2, 3, 4}, 1));
    rows.push_back(row_of(logarithm, "more columns than a block", {2, 2, 131}, 1));
    rows.push_back(row_of(logarithm, "no rows", {0, 3}, 1));
    rows.push_back(row_of(logarithm, "empty rows", {3, 0}, 1));
    OpRow single = row_of(logarithm, "rows of one", {5, 1}, 1);
    single.zero_gradient = true;  // always 1, or 0
    rows.push_back(single);
  }
  return rows;
}

}  // namespace polygrad::testing

// Rows of the unary family.
#include "ops/unary.h"

#include "tests/op_cases/op_case.h"
#include "tests/reference/unary.h"

namespace polygrad::testing {
namespace {

using Sizes = std::vector<std::int64_t>;

OpRow row_of(const std::string& op, Tensor (*function)(const Tensor&), const std::string& name, const Sizes& shape,
             Fill fill) {
  OpRow row;
  row.op = op;
  row.name = name;
  row.inputs = {{shape, fill}};
  row.run = [function](const Tensors& t) { return function(t[0]); };
  row.reference = [op](const Arrays& t) { return reference::unary(op, t[0]); };
  row.zero_gradient = reference::Array::count(shape) == 0;
  return row;
}

OpRow pow_row(int n, const Sizes& shape, Fill fill) {
  OpRow row;
  row.op = "pow";
  row.name = "exponent " + std::to_string(n);
  row.inputs = {{shape, fill}};
  row.run = [n](const Tensors& t) { return pow(t[0], n); };
  row.reference = [n](const Arrays& t) { return reference::pow(t[0], n); };
  row.zero_gradient = n == 0;
  return row;
}

}  // namespace

std::vector<OpRow> unary_rows() {
  const struct {
    const char* op;
    Tensor (*function)(const Tensor&);
    Fill fill;
  } kMaps[] = {
      {"neg", neg, Fill::normal},
      {"abs", abs, Fill::distinct},
      {"exp", exp, Fill::normal},
      {"exp_neg", exp_neg, Fill::normal},
      {"log", log, Fill::positive},
      {"sqrt", sqrt, Fill::positive},
      {"reciprocal", reciprocal, Fill::positive},
      {"square", square, Fill::normal},
      {"tanh", tanh, Fill::normal},
      {"sigmoid", sigmoid, Fill::normal},
      {"relu", relu, Fill::distinct},
      {"elu", elu, Fill::distinct},
      {"gelu", gelu, Fill::normal},
      {"gelu_tanh", gelu_tanh, Fill::normal},
      {"silu", silu, Fill::normal},
      {"softplus", softplus, Fill::normal},
  };
  std::vector<OpRow> rows;
  for (const auto& map : kMaps) {
    rows.push_back(row_of(map.op, map.function, "a scalar", {}, Fill::positive));
    rows.push_back(row_of(map.op, map.function, "nothing", {0, 3}, map.fill));
    rows.push_back(row_of(map.op, map.function, "one element", {1, 1}, Fill::positive));
    rows.push_back(row_of(map.op, map.function, "a vector", {37}, map.fill));
    rows.push_back(row_of(map.op, map.function, "7 rows", {7, 5}, map.fill));
    rows.push_back(row_of(map.op, map.function, "four dimensions", {2, 3, 1, 4}, map.fill));
  }
  for (int n : {0, 1, 2, 3, 4, 7}) rows.push_back(pow_row(n, {7, 3}, Fill::normal));
  for (int n : {-1, -2, -3}) rows.push_back(pow_row(n, {7, 3}, Fill::positive));
  OpRow nothing = pow_row(3, {3, 0}, Fill::normal);
  nothing.name = "nothing";
  nothing.zero_gradient = true;
  rows.push_back(nothing);
  return rows;
}

}  // namespace polygrad::testing

// Rows of the norm family.
#include "ops/norm.h"

#include "tests/op_cases/op_case.h"
#include "tests/reference/norm.h"

namespace polygrad::testing {
namespace {

using Sizes = std::vector<std::int64_t>;

enum class Parameters { both, weight, bias, none };

OpRow row_of(const std::string& name, const Sizes& shape, Parameters parameters, double eps = 1e-5) {
  const bool has_weight = parameters == Parameters::both || parameters == Parameters::weight;
  const bool has_bias = parameters == Parameters::both || parameters == Parameters::bias;
  OpRow row;
  row.op = "layer_norm";
  row.name = name;
  row.inputs = {{shape}};
  // An expanded vector would be constant: nothing to normalise, and a difference quotient of 1/sqrt(eps).
  row.inputs[0].any_layout = shape.size() > 1;
  if (has_weight) row.inputs.push_back({{shape.back()}, Fill::positive});
  if (has_bias) row.inputs.push_back({{shape.back()}});
  row.run = [=](const Tensors& t) {
    return layer_norm(t[0], has_weight ? t[1] : Tensor(), has_bias ? t.back() : Tensor(), eps);
  };
  row.reference = [=](const Arrays& t) {
    return reference::layer_norm(t[0], has_weight ? t[1] : reference::Array(), has_bias ? t.back() : reference::Array(),
                                 eps);
  };
  row.zero_gradient = reference::Array::count(shape) == 0;
  return row;
}

}  // namespace

std::vector<OpRow> norm_rows() {
  OpRow single = row_of("rows of one: the bias", {4, 1}, Parameters::both);
  single.zero_gradient = true;  // of x and the weight: x̂ is 0
  return {
      row_of("a vector", {9}, Parameters::both),
      row_of("7 rows", {7, 5}, Parameters::both),
      row_of("7 rows, no weight", {7, 5}, Parameters::bias),
      row_of("7 rows, no bias", {7, 5}, Parameters::weight),
      row_of("7 rows, neither", {7, 5}, Parameters::none),
      row_of("another eps", {3, 6}, Parameters::both, 0.1),
      row_of("rows longer than the lanes", {3, 35}, Parameters::both),
      row_of("more rows than a group", {2, 17, 4}, Parameters::both),
      row_of("four dimensions", {2, 1, 3, 8}, Parameters::both),
      row_of("no rows", {0, 3}, Parameters::both),
      row_of("empty rows", {3, 0}, Parameters::both),
      single,
  };
}

}  // namespace polygrad::testing

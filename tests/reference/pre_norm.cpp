#include "tests/reference/pre_norm.h"

#include "tests/reference/matmul.h"
#include "tests/reference/norm.h"

namespace reference {

Array pre_norm_linear(const Array& x, const Array& norm_weight, const Array& norm_bias, double eps, const Array& weight,
                      const Array& bias) {
  return linear(layer_norm(x, norm_weight, norm_bias, eps), weight, bias);
}

Array linear_residual(const Array& residual, const Array& x, const Array& weight, const Array& bias, double p,
                      const Stream& stream) {
  return residual_add(residual, linear(x, weight, bias), p, stream);
}

Array pre_norm_mlp(const Array& x, const MlpParameters& m, double eps, double p, const Stream& stream) {
  const Array hidden = linear_gelu(layer_norm(x, m.norm_weight, m.norm_bias, eps), m.weight1, m.bias1);
  return residual_add(x, linear(hidden, m.weight2, m.bias2), p, stream);
}

}  // namespace reference

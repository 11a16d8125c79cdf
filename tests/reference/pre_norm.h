// Naive twins of the pre_norm family: the compositions that ops/pre_norm.h names.
#pragma once

#include "tests/reference/array.h"
#include "tests/reference/dropout.h"

namespace reference {

Array pre_norm_linear(const Array& x, const Array& norm_weight, const Array& norm_bias, double eps, const Array& weight,
                      const Array& bias);
Array linear_residual(const Array& residual, const Array& x, const Array& weight, const Array& bias, double p,
                      const Stream& stream);
struct MlpParameters {
  const Array &norm_weight, &norm_bias, &weight1, &bias1, &weight2, &bias2;
};
Array pre_norm_mlp(const Array& x, const MlpParameters& parameters, double eps, double p, const Stream& stream);

}  // namespace reference

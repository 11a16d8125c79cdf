// train.precision: in which precision a run's matrix products are computed (ops/precision.h).
#pragma once

#include <string>

#include "ops/precision.h"

namespace polygrad {

// "f32", "bf16" or "f16". Throws ConfigError for another word, and for a precision that this device, build or gemm
// provider can't compute in, saying why.
Precision parse_precision(const std::string& text, Device device);

}  // namespace polygrad

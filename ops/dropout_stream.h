// From a probability and a generator's stream to what dropout kernels draw with. Internal: not installed.
#pragma once

#include <cmath>

#include "engine/generator.h"
#include "ops/kernels/dropout.h"

namespace polygrad {

inline DropoutStream dropout_stream(double p, const RandomStream& stream) {
  return {.seed = stream.seed,
          .offset = static_cast<std::uint32_t>(stream.offset),
          .first_sample = stream.first_sample,
          .threshold = static_cast<std::uint32_t>(std::ceil(p * 0x1p24)),
          .scale = 1 / (1 - p)};
}

}  // namespace polygrad

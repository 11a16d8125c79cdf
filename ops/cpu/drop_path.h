// Which samples drop path keeps, for all kernels that apply it.
#pragma once

#include "engine/philox.h"
#include "ops/kernels/dropout.h"

namespace polygrad {

POLYGRAD_INLINE bool keeps_sample(const DropoutStream& stream, std::int64_t row) {
  const std::int64_t sample = stream.first_sample + row;
  const philox::Words drawn =
      philox::draw(stream.seed, philox::Domain::drop_path, 0, static_cast<std::uint32_t>(sample),
                   static_cast<std::uint32_t>(sample >> 32), stream.offset);
  return (drawn.w[0] >> 8) >= stream.threshold;
}

}  // namespace polygrad

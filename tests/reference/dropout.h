// Naive twins of the dropout family, with a Philox4x32-10 of their own, written from the paper's description (Salmon et
// al., 2011, "Parallel random numbers: as easy as 1, 2, 3") and the counters that ops/kernels/dropout.h promises.
#pragma once

#include <array>
#include <cstdint>

#include "tests/reference/array.h"

namespace reference {

struct Stream {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  std::int64_t first_sample = 0;
};

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 2> key, std::array<std::uint32_t, 4> counter);

Array dropout(const Array& x, double p, const Stream& stream);
Array drop_path(const Array& x, double p, const Stream& stream);
Array residual_add(const Array& x, const Array& branch, double p, const Stream& stream);

}  // namespace reference

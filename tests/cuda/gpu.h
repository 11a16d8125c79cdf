// The device of the CUDA tests, and how they are skipped where there is none.
#pragma once

#include <doctest/doctest.h>

#include "engine/device.h"
#include "tests/support/skip.h"

namespace polygrad::testing {

inline Device gpu() { return Device::cuda(0); }

}  // namespace polygrad::testing

#define POLYGRAD_NEEDS_GPU()                           \
  if (polygrad::cuda_device_count() == 0) {            \
    polygrad::testing::skip("no GPU on this machine"); \
    return;                                            \
  }

// skip(): the only way a test may be left out. It prints the reason, which the suite's summary repeats and judges.
#pragma once

#include <cstdio>

namespace polygrad::testing {

// Call as `return skip("sample data missing: POLYGRAD_TEST_DATA is not set");`. Allowed reasons begin with "no GPU",
// "no bf16 units", "sample data missing", "kernel forbids mounts" or "no TensorBoard"; any other fails the suite.
inline void skip(const char* reason) {
  std::printf("[skip] %s\n", reason);
  std::fflush(stdout);
}

}  // namespace polygrad::testing

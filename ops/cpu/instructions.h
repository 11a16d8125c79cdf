// Which instruction sets the kernels of ops/cpu were compiled for.
//
// Where this stands: instructions.cpp, compiled like the kernels, says what the compiler was allowed to use;
// ops/kernels/dispatch.cpp, compiled for any CPU, compares it with the CPU it runs on, so that a build carried to an
// older machine ends in a DeviceError and not in an illegal instruction.
#pragma once

#include <cstdint>

namespace polygrad::cpu {

// Those that GCC uses unasked in ordinary code; a bit each.
enum Instructions : std::uint32_t {
  kSse3 = 1u << 0,
  kSsse3 = 1u << 1,
  kSse41 = 1u << 2,
  kSse42 = 1u << 3,
  kPopcnt = 1u << 4,
  kAvx = 1u << 5,
  kAvx2 = 1u << 6,
  kFma = 1u << 7,
  kBmi = 1u << 8,
  kBmi2 = 1u << 9,
  kAvx512f = 1u << 10,
  kAvx512cd = 1u << 11,
  kAvx512bw = 1u << 12,
  kAvx512dq = 1u << 13,
  kAvx512vl = 1u << 14,
  kAvx512ifma = 1u << 15,
  kAvx512vbmi = 1u << 16,
  kAvx512vbmi2 = 1u << 17,
  kAvx512vnni = 1u << 18,
  kAvx512bitalg = 1u << 19,
  kAvx512vpopcntdq = 1u << 20,
  kAvx512bf16 = 1u << 21,
};

// Data, not a function: reading it needs no instruction of the set.
extern const std::uint32_t kCompiledInstructions;

}  // namespace polygrad::cpu

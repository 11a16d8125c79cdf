#include "ops/kernels/dispatch.h"

#include <string>

#include "engine/error.h"
#include "engine/format.h"
#include "ops/cpu/instructions.h"

namespace polygrad {
namespace {

// The names of those instruction sets that ops/cpu was compiled for and this CPU lacks: "avx2, fma", or "".
std::string missing_instructions() {
  std::string missing;
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
  const struct {
    std::uint32_t bit;
    const char* name;
    bool supported;
  } sets[] = {
      {cpu::kSse3, "sse3", __builtin_cpu_supports("sse3") != 0},
      {cpu::kSsse3, "ssse3", __builtin_cpu_supports("ssse3") != 0},
      {cpu::kSse41, "sse4.1", __builtin_cpu_supports("sse4.1") != 0},
      {cpu::kSse42, "sse4.2", __builtin_cpu_supports("sse4.2") != 0},
      {cpu::kPopcnt, "popcnt", __builtin_cpu_supports("popcnt") != 0},
      {cpu::kAvx, "avx", __builtin_cpu_supports("avx") != 0},
      {cpu::kAvx2, "avx2", __builtin_cpu_supports("avx2") != 0},
      {cpu::kFma, "fma", __builtin_cpu_supports("fma") != 0},
      {cpu::kBmi, "bmi", __builtin_cpu_supports("bmi") != 0},
      {cpu::kBmi2, "bmi2", __builtin_cpu_supports("bmi2") != 0},
      {cpu::kAvx512f, "avx512f", __builtin_cpu_supports("avx512f") != 0},
      {cpu::kAvx512cd, "avx512cd", __builtin_cpu_supports("avx512cd") != 0},
      {cpu::kAvx512bw, "avx512bw", __builtin_cpu_supports("avx512bw") != 0},
      {cpu::kAvx512dq, "avx512dq", __builtin_cpu_supports("avx512dq") != 0},
      {cpu::kAvx512vl, "avx512vl", __builtin_cpu_supports("avx512vl") != 0},
      {cpu::kAvx512ifma, "avx512ifma", __builtin_cpu_supports("avx512ifma") != 0},
      {cpu::kAvx512vbmi, "avx512vbmi", __builtin_cpu_supports("avx512vbmi") != 0},
      {cpu::kAvx512vbmi2, "avx512vbmi2", __builtin_cpu_supports("avx512vbmi2") != 0},
      {cpu::kAvx512vnni, "avx512vnni", __builtin_cpu_supports("avx512vnni") != 0},
      {cpu::kAvx512bitalg, "avx512bitalg", __builtin_cpu_supports("avx512bitalg") != 0},
      {cpu::kAvx512vpopcntdq, "avx512vpopcntdq", __builtin_cpu_supports("avx512vpopcntdq") != 0},
      {cpu::kAvx512bf16, "avx512bf16", __builtin_cpu_supports("avx512bf16") != 0},
  };
  for (const auto& set : sets) {
    if (set.supported || (cpu::kCompiledInstructions & set.bit) == 0) continue;
    missing += (missing.empty() ? "" : ", ") + std::string(set.name);
  }
#endif
  return missing;
}

}  // namespace

void check_cpu_instructions() {
  static const std::string missing = missing_instructions();
  if (missing.empty()) return;
  throw DeviceError(
      format("[cpu] this build's kernels need instructions that this CPU does not have: {}; configure on this machine, "
             "or with "
             "-DPOLYGRAD_CPU_ARCH=x86-64-v3 (or x86-64)",
             missing));
}

void require_kernel(const char* op, bool present, DeviceType device) {
  if (present) return;
  throw NotImplementedError(format("[{}] no {} kernel for this operation; move its inputs to another device", op,
                                   device == DeviceType::cuda ? "CUDA" : "CPU"));
}

void refuse_dtype(DType dtype) {
  throw InternalError(format("[kernel] {} reached a kernel that computes in f32 or f64", to_string(dtype)));
}

}  // namespace polygrad

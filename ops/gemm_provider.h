// Which library multiplies matrices on the CPU: a choice for the whole process.
//
// Where this stands: part of ops/matmul.h's interface; in a header of its own because the kernels read it too.
// Read next: ops/cpu/gemm.h.
#pragma once

#include <cstdint>

namespace polygrad {

enum class GemmProvider : std::uint8_t {
  onednn,  // f32 only; f64 goes to Eigen
  eigen,
};

// "onednn", "eigen".
const char* to_string(GemmProvider provider);
// Whether this build has it. Eigen always.
bool has_gemm_provider(GemmProvider provider);
// The one in use: set_gemm_provider's, else that of the environment variable POLYGRAD_GEMM (read once, at the first
// call; ValueError where it names none of this build), else oneDNN where the build has it.
GemmProvider gemm_provider();
// For all threads, from their next product on. Results have the same bits within a provider, not between the two.
// Throws ValueError where the build does not have it.
void set_gemm_provider(GemmProvider provider);

}  // namespace polygrad

// In which precision a thread's matrix products are computed: mixed precision, while a guard lives.
//
// Where this stands: read by four fronts: linear and matmul, attention, layer_norm (whose result goes into a product),
// and by no other op. Put a guard around a forward and its backward.
// What it does: under PrecisionGuard(Precision::bf16) these ops take f32 or bf16 activations, round what they multiply
// to bf16, sum in f32 and return bf16; Precision::f16 likewise. Parameters stay f32, and so do their gradients; a
// weight is rounded once for each version of it. residual_add takes the 16-bit result back into the f32 stream, and
// to(dtype) does elsewhere: nothing is promoted silently. f64 is never touched. f16 ends at 65504, and below 6e-8 there
// is nothing: gradients need a loss scale (apps/training/loss_scale.h). Read next: rounded_weights.h (where rounded
// weights live), ops/cpu/gemm_bf16.h, ops/cuda/gemm.h (the products).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/device.h"

namespace polygrad {

enum class Precision : std::uint8_t {
  f32,
  bf16,  // on a GPU; on the CPU: needs oneDNN and a CPU with bf16 units (avx512_bf16 or amx_bf16)
  f16,   // on a GPU; not on the CPU
};

// "f32", "bf16", "f16".
const char* to_string(Precision precision);
// The other way round. Throws ValueError for another name.
Precision precision_named(const std::string& name);
// Why products can't be computed in this precision here, and what to do; "" where they can. Of a GPU that isn't there
// it says nothing: check_device does.
std::string precision_obstacle(Precision precision, Device device = {});

namespace detail {
class RoundedWeights;
}

// Of the calling thread, from now on until the guard's end; guards nest. A backward runs in the precision of its
// forward, with or without a guard; under one it finds the weights that the forward rounded.
class PrecisionGuard {
 public:
  // Throws NotImplementedError with precision_obstacle's text.
  explicit PrecisionGuard(Precision precision, Device device = {});
  ~PrecisionGuard();
  PrecisionGuard(const PrecisionGuard&) = delete;
  PrecisionGuard& operator=(const PrecisionGuard&) = delete;

 private:
  Precision previous_;
  std::unique_ptr<detail::RoundedWeights> weights_;  // of the outermost guard that needs them
};
// The innermost guard's; f32 without one.
Precision current_precision();

}  // namespace polygrad

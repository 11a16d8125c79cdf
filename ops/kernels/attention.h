// The attention kernels' signatures: one problem description, three paths, the map, the norms.
//
// Where this stands: between ops/attention.cpp (which has checked everything) and ops/cpu/attention*.cpp.
// Read next: ops/cpu/attention_tiled.cpp.
#pragma once

#include <cstdint>

#include "engine/tensor_ref.h"
#include "engine/workspace.h"
#include "ops/kernels/dispatch.h"

namespace polygrad {

// Dropout on P. Element (b, h, i, j) draws 16 bits: Philox counter (j / 8, i, (first_sample + b)·H + h, offset), domain
// "attention", lane j mod 8 (word lane / 2, low half first); it is kept iff they are >= threshold. The mask depends on
// nothing else: not on the path, the blocks, the padding or the micro-batch.
struct AttentionDropout {
  std::uint32_t threshold = 0;  // 0: no dropout; at most 65535
  double scale = 1;             // of the kept ones: 65536 / (65536 - threshold)
  std::uint64_t seed = 0;
  std::uint32_t offset = 0;
  std::int64_t first_sample = 0;
};

// All tensors of one dtype T (f32 or f64) unless said otherwise; the tiled path on a GPU reads and writes bf16 and f16
// too, with bias, its gradient and the state in f32. B, H, Nq, Nk, d >= 1.
struct AttentionProblem {
  TensorRef q;            // (B, H, Nq, d); q, k, v: unit stride in the last dimension, rows at least d apart
  TensorRef k;            // (B, H, Nk, d)
  TensorRef v;            // (B, H, Nk, d); absent for the map and the norms
  TensorRef bias;         // (G, H, Nq, Nk) contiguous, or absent; batch b uses b % G
  TensorRef key_mask;     // bool (B, Nk) contiguous, or absent
  TensorRef query_mask;   // bool (B, Nq) contiguous, or absent
  TensorRef regions;      // i32 (G, N) contiguous, N = Nq = Nk, or absent; batch b uses b % G
  std::int32_t phi = -1;  // position in ActivationList, or kSoftmax
  double score_scale = 1;
  double divisor = 1;  // c; 1 for softmax
  AttentionDropout dropout;
};

// What the backward writes; each may be absent (not needed). Rows like q's: unit last stride, any others.
struct AttentionGradients {
  TensorRef dq, dk, dv;  // (B, H, Nq | Nk, d)
  TensorRef dbias;       // like bias, contiguous
};

// One way to compute O = P v and its gradient. `state` is what the forward keeps for the backward; its shape is the
// path's own (attention_state_shape in ops/attention.cpp), absent where nothing is kept or no gradient will be asked.
struct AttentionPathKernels {
  // out (B, H, Nq, d): unit last stride.
  void (*forward)(Workspace& workspace, const AttentionProblem& problem, const TensorRef& out, const TensorRef& state);
  // out: the forward's result; grad: dO, laid out like out.
  void (*backward)(Workspace& workspace, const AttentionProblem& problem, const TensorRef& out, const TensorRef& state,
                   const TensorRef& grad, const AttentionGradients& gradients);
};

struct AttentionKernels {
  AttentionPathKernels tiled;         // state: softmax (2, B, H, Nq), a row's maximum and the inverse of its sum
  AttentionPathKernels linear;        // state: (B, H, d, d), kᵀ v of the visible keys
  AttentionPathKernels materialised;  // state: (B, H, Nq, Nk), P before dropout
  // map (B, H, Nq, Nk) contiguous: P without dropout.
  void (*map)(Workspace& workspace, const AttentionProblem& problem, const TensorRef& map);
  // x (B, N, D): unit last stride. norms f64 (4, B, H) contiguous: ‖P‖, ‖dP/dS‖, ‖dP/dW_q‖, ‖dP/dW_k‖.
  void (*norms)(Workspace& workspace, const AttentionProblem& problem, const TensorRef& x, const TensorRef& norms);
};

extern const AttentionKernels cpu_attention_kernels;  // ops/cpu/attention.cpp
const AttentionKernels& cuda_attention_kernels();     // ops/cuda/attention.cu, or ops/no_cuda.cpp
inline const AttentionKernels& attention_kernels(DeviceType device) {
  return select_kernels(device, cpu_attention_kernels, cuda_attention_kernels);
}

}  // namespace polygrad

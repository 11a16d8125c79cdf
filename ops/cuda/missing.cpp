// The tables of families that have no CUDA kernels yet.
#include "ops/kernels/attention.h"
#include "ops/kernels/dropout.h"
#include "ops/kernels/index.h"
#include "ops/kernels/loss.h"
#include "ops/kernels/matmul.h"
#include "ops/kernels/norm.h"
#include "ops/kernels/optim_step.h"
#include "ops/kernels/patch.h"
#include "ops/kernels/pre_norm.h"
#include "ops/kernels/reduce.h"
#include "ops/kernels/softmax.h"

namespace polygrad {

const AttentionKernels& cuda_attention_kernels() {
  static constexpr AttentionKernels kNone = {};
  return kNone;
}
const DropoutKernels& cuda_dropout_kernels() {
  static constexpr DropoutKernels kNone = {};
  return kNone;
}
const IndexKernels& cuda_index_kernels() {
  static constexpr IndexKernels kNone = {};
  return kNone;
}
const LossKernels& cuda_loss_kernels() {
  static constexpr LossKernels kNone = {};
  return kNone;
}
const MatmulKernels& cuda_matmul_kernels() {
  static constexpr MatmulKernels kNone = {};
  return kNone;
}
const NormKernels& cuda_norm_kernels() {
  static constexpr NormKernels kNone = {};
  return kNone;
}
const OptimStepKernels& cuda_optim_step_kernels() {
  static constexpr OptimStepKernels kNone = {};
  return kNone;
}
const PatchKernels& cuda_patch_kernels() {
  static constexpr PatchKernels kNone = {};
  return kNone;
}
const PreNormKernels& cuda_pre_norm_kernels() {
  static constexpr PreNormKernels kNone = {};
  return kNone;
}
const ReduceKernels& cuda_reduce_kernels() {
  static constexpr ReduceKernels kNone = {};
  return kNone;
}
const SoftmaxKernels& cuda_softmax_kernels() {
  static constexpr SoftmaxKernels kNone = {};
  return kNone;
}

}  // namespace polygrad

// The GPU's kernel tables in a build without CUDA: each front that asks for one is told so.
#include "engine/error.h"
#include "engine/format.h"
#include "ops/kernels/attention.h"
#include "ops/kernels/binary.h"
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
#include "ops/kernels/unary.h"

namespace polygrad {
namespace {

[[noreturn]] void fail(const char* family) {
  throw DeviceError(format("[{}] built without CUDA; configure with -DPOLYGRAD_CUDA=ON", family));
}

}  // namespace

const AttentionKernels& cuda_attention_kernels() { fail("attention"); }
const BinaryKernels& cuda_binary_kernels() { fail("binary"); }
const DropoutKernels& cuda_dropout_kernels() { fail("dropout"); }
const IndexKernels& cuda_index_kernels() { fail("index"); }
const LossKernels& cuda_loss_kernels() { fail("loss"); }
const MatmulKernels& cuda_matmul_kernels() { fail("matmul"); }
const NormKernels& cuda_norm_kernels() { fail("norm"); }
const OptimStepKernels& cuda_optim_step_kernels() { fail("optim_step"); }
const PatchKernels& cuda_patch_kernels() { fail("patch"); }
const PreNormKernels& cuda_pre_norm_kernels() { fail("pre_norm"); }
const ReduceKernels& cuda_reduce_kernels() { fail("reduce"); }
const SoftmaxKernels& cuda_softmax_kernels() { fail("softmax"); }
const UnaryKernels& cuda_unary_kernels() { fail("unary"); }

}  // namespace polygrad

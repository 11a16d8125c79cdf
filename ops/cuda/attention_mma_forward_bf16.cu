// Attention on tensor cores, the forward: its kernels in bf16, for every φ and width.
#include "ops/cuda/attention_mma_forward.h"

namespace polygrad::cuda::attention {

template void mma_forward<BFloat16>(const AttentionProblem&, const TensorRef&, const TensorRef&);

}  // namespace polygrad::cuda::attention

// Attention on tensor cores, the backward whose rows are keys: its kernels in f16, for every φ and width.
#include "ops/cuda/attention_mma_backward.h"

namespace polygrad::cuda::attention {

template void mma_backward_keys<Float16>(const AttentionProblem&, const TensorRef&, const TensorRef&, const TensorRef&,
                                         const TensorRef&, const TensorRef&);

}  // namespace polygrad::cuda::attention

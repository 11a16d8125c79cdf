# The GPU backend's sources, for the builds that compile them: with nvcc (engine/, ops/), and with the C++ compiler and a
# CUDA runtime of the tests (tests/cuda/host).
set(polygrad_engine_cuda_sources
  backend/cuda/capture.cpp
  backend/cuda/context.cpp
  backend/cuda/device.cpp
  backend/cuda/kernels.cu
  backend/cuda/memory.cpp
  backend/cuda/transfer.cpp
)
# cuda/gemm.cpp, which calls cuBLASLt, comes to those in ops/; the tests have their own in its place.
set(polygrad_ops_cuda_sources
  cuda/attention.cu
  cuda/attention_linear.cu
  cuda/attention_mma.cu
  cuda/attention_mma_forward_bf16.cu
  cuda/attention_mma_forward_f16.cu
  cuda/attention_mma_keys_bf16.cu
  cuda/attention_mma_keys_f16.cu
  cuda/attention_mma_queries_bf16.cu
  cuda/attention_mma_queries_f16.cu
  cuda/attention_norms.cu
  cuda/attention_tiled.cu
  cuda/attention_whole.cu
  cuda/binary.cu
  cuda/dropout.cu
  cuda/index.cu
  cuda/loss.cu
  cuda/matmul.cu
  cuda/norm.cu
  cuda/optim_step.cu
  cuda/patch.cu
  cuda/pre_norm.cu
  cuda/reduce.cu
  cuda/softmax.cu
  cuda/unary.cu
)

# The GPU backend's sources, for the builds that compile them: with nvcc (engine/, ops/), and with the C++ compiler and a
# CUDA runtime of the tests (tests/cuda/host).
set(polygrad_engine_cuda_sources
  backend/cuda/context.cpp
  backend/cuda/device.cpp
  backend/cuda/kernels.cu
  backend/cuda/memory.cpp
  backend/cuda/transfer.cpp
)
set(polygrad_ops_cuda_sources
  cuda/binary.cu
  cuda/missing.cpp
  cuda/unary.cu
)

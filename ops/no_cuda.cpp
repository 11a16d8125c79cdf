// no_cuda

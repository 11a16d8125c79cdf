// Runs a kernel's grid: block after block, the threads of each as fibers.
#pragma once

#include <functional>
#include <string>

#include <cuda_runtime.h>

namespace host_cuda {

// "" where all threads came to their end, else what they did wrong: threads that wait at different barriers, or for a
// thread that has left.
std::string run_grid(const cudaLaunchConfig_t& config, const std::function<void()>& thread);

}  // namespace host_cuda

// What tests switch in the CPU's CUDA runtime (include/cuda_runtime.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace host_cuda {

// In which order the threads of a block run between two barriers, and the blocks of a grid. A kernel whose result
// depends on it has a race.
enum class Order { ascending, descending };

struct Settings {
  Order order = Order::ascending;
  int devices = 1;
  int multiprocessors = 2;          // few, so that loops over a grid take several turns
  bool has_image = true;            // false: as if the build had no kernels for the device
  std::size_t memory = 1ull << 30;  // of a device
};
Settings& settings();

struct Counts {
  std::uint64_t launches = 0, blocks = 0, threads = 0, graphs = 0;
  std::uint64_t waits = 0;  // of the host for a stream or an event
};
Counts& counts();

}  // namespace host_cuda

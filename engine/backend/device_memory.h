// The memory of GPUs, and copies to and from it: one table, which throws in a build without CUDA.
//
// Where this stands: below memory.cpp, workspace.cpp and tensor.cpp. Internal: not installed.
// Read next: cuda/memory.cpp (the allocator), cuda/transfer.cpp (the copies).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "engine/device.h"
#include "engine/memory.h"

namespace polygrad {

struct DeviceMemory {
  // From now on the calling thread's kernels and copies run on this device.
  void (*select)(int device);
  // As detail::allocate and detail::deallocate of memory.h. A block belongs to the calling thread's stream: it may be
  // used there at once, and its next user waits for what other streams still do with it.
  void* (*allocate)(std::size_t bytes, int device);
  void (*deallocate)(void* pointer, std::size_t bytes, int device) noexcept;
  MemoryStats (*stats)(int device);
  void (*reset_peak)(int device);
  void (*set_limit)(std::size_t bytes, int device);
  void (*trim)(int device);
  // Bytes, in order with the calling thread's kernels. copy_in has read the host's memory when it returns, copy_out and
  // copy_across have written theirs.
  void (*copy_in)(const void* host, void* to, std::size_t bytes, int device);
  void (*copy_out)(const void* from, void* host, std::size_t bytes, int device);
  void (*copy_across)(const void* from, int from_device, void* to, int to_device, std::size_t bytes);
  // Runs `work`, whose copies and new blocks belong to the calling thread's copy stream. The result is for await, which
  // makes the calling thread's further work wait for those copies; the host doesn't wait.
  std::shared_ptr<void> (*ahead)(int device, const std::function<void()>& work);
  void (*await)(int device, const std::shared_ptr<void>& ticket);
  // As engine/capture.h has it: the graph, and its start.
  std::shared_ptr<void> (*capture)(int device, const std::function<void()>& work);
  void (*replay)(int device, const std::shared_ptr<void>& graph);
  // A point in the calling thread's work there, and the seconds between two of them, for which it waits.
  std::shared_ptr<void> (*mark)(int device);
  double (*seconds_between)(const std::shared_ptr<void>& earlier, const std::shared_ptr<void>& later);
  // Waits for all that the calling thread has started there.
  void (*synchronize)(int device);
};

const DeviceMemory& cuda_memory();

}  // namespace polygrad

// Workspace: what every kernel call gets: scratch memory from the caching allocator, in a known floating-point state.
//
// A front makes one on its stack right before it calls a kernel. While it lives, the calling thread computes with the
// kernels' floating-point state (parallel.h), so that a caller's flush-to-zero changes no result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/device.h"
#include "engine/parallel.h"

namespace polygrad {

class Workspace {
 public:
  explicit Workspace(Device device = {});
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // Uninitialised, 64-byte aligned, freed with the workspace. Not for several threads at once: allocate before
  // parallel_for, or make a Workspace inside the chunk.
  void* allocate(std::size_t bytes);
  template <class T>
  POLYGRAD_HOST_INLINE T* allocate(std::int64_t count) {
    return static_cast<T*>(allocate(static_cast<std::size_t>(count) * sizeof(T)));
  }
  Device device() const;

 private:
  FloatingPointGuard floating_point_;
  Device device_;
  std::vector<std::pair<void*, std::size_t>> blocks_;
};

}  // namespace polygrad

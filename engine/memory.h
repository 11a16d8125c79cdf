// Memory: the caching allocator behind every tensor, one interface for the CPU and the GPU.
//
// Where this stands: below tensor.h. A fresh 25 MB buffer costs the CPU about 9 ms of page faults, a reused one 0.3 ms,
// so freed blocks are kept by size class and given out again. Thread-safe; each thread keeps a few small blocks of its
// own, which go back when it ends.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/device.h"

namespace polygrad {

struct MemoryStats {
  std::size_t bytes_in_use = 0;         // by live tensors and workspaces, rounded up to size classes
  std::size_t bytes_cached = 0;         // freed, kept for reuse
  std::size_t peak_bytes_in_use = 0;    // since the start or the last reset_peak_memory
  std::uint64_t allocations = 0;        // calls
  std::uint64_t fresh_allocations = 0;  // calls that had to ask the system
  std::size_t limit = 0;                // 0: none
};

MemoryStats memory_stats(Device device = {});
void reset_peak_memory(Device device = {});
// In use + cached never exceeds this, however many threads allocate at once (where more is in use already, nothing is
// asked of the system until it is less). A request that would exceed it first empties the shared cache and this
// thread's own, then throws OutOfMemoryError. The small blocks that other threads keep, at most 1 MiB each, count and
// can't be taken from them: allow for them in a limit. 0: no limit.
void set_memory_limit(std::size_t bytes, Device device = {});
// Gives cached blocks back to the system (this thread's and the shared ones).
void trim_memory(Device device = {});

namespace detail {
// 64-byte aligned, uninitialised. bytes = 0 gives a non-null pointer too. Throws OutOfMemoryError.
void* allocate(std::size_t bytes, Device device);
// `bytes` as given to allocate.
void deallocate(void* pointer, std::size_t bytes, Device device) noexcept;
}  // namespace detail

}  // namespace polygrad

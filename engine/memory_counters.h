// What every caching allocator counts, and the limit that it keeps. Internal: not installed.
//
// Where this stands: below memory.cpp (the CPU's memory) and backend/cuda/memory.cpp (a GPU's).
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/memory.h"

namespace polygrad::detail {

// One of eight sizes per power of two, multiples of `alignment`: a freed block fits the next request of about its size,
// and at most an eighth is wasted.
inline std::size_t size_class(std::size_t bytes, std::size_t alignment) {
  if (bytes <= alignment) return alignment;
  const int log2 = std::bit_width(bytes - 1) - 1;
  const std::size_t step = std::size_t{1} << (log2 > 3 ? log2 - 3 : 0), quantum = step > alignment ? step : alignment;
  return (bytes + quantum - 1) / quantum * quantum;
}

struct MemoryCounters {
  std::atomic<std::size_t> in_use{0}, cached{0}, peak{0}, limit{0};
  std::atomic<std::size_t> held{0};  // asked of the system and not given back: in use + cached, and never out of step
  std::atomic<std::uint64_t> allocations{0}, fresh{0};

  void count_use(std::size_t bytes) {
    const std::size_t now = in_use.fetch_add(bytes) + bytes;
    std::size_t seen = peak.load();
    while (seen < now && !peak.compare_exchange_weak(seen, now)) {
    }
  }

  // Claims bytes that are about to be asked of the system; false where they would exceed the limit. One step, so that
  // threads that allocate at once can't exceed it together.
  bool reserve(std::size_t bytes) {
    std::size_t now = held.load();
    do {
      const std::size_t most = limit.load();
      if (most != 0 && (now > most || bytes > most - now)) return false;
    } while (!held.compare_exchange_weak(now, now + bytes));
    return true;
  }

  MemoryStats stats() const {
    return {.bytes_in_use = in_use,
            .bytes_cached = cached,
            .peak_bytes_in_use = peak,
            .allocations = allocations,
            .fresh_allocations = fresh,
            .limit = limit};
  }

  // Throws OutOfMemoryError. `where`: "" or " on cuda:0".
  [[noreturn]] void fail(std::size_t bytes, const std::string& where = "") const;
};

}  // namespace polygrad::detail

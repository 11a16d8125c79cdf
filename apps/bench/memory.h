// The process's resident memory: the peak since a moment of our choice; what is asked of the system meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "engine/device.h"

namespace polygrad::bench {

// The process's peak resident size since its start (or the last PeakMemory), MiB.
double peak_resident_mib();

// What a piece of work asked of the system: differences of two of these.
struct SystemRequests {
  std::int64_t page_faults = 0;       // minor ones, of the whole process: pages touched for the first time
  std::int64_t allocator_misses = 0;  // allocations that the device's cache of engine/memory.h could not serve
};
SystemRequests system_requests(Device device = {});

// Watches the growth of the resident size from its construction on. The kernel's own peak counter is reset where it can
// be (/proc/self/clear_refs); elsewhere a thread looks at the size every half millisecond.
class PeakMemory {
 public:
  PeakMemory();
  ~PeakMemory();
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;
  // Largest size so far, less the size at construction, MiB.
  double growth_mib() const;
  bool sampled() const { return sampler_.joinable(); }

 private:
  double start_mib_;
  std::atomic<bool> stop_{false};
  std::atomic<double> largest_mib_{0};
  std::thread sampler_;
};

}  // namespace polygrad::bench

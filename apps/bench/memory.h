// The process's resident memory: the peak since a moment of our choice.
#pragma once

#include <atomic>
#include <thread>

namespace polygrad::bench {

// The process's peak resident size since its start (or the last PeakMemory), MiB.
double peak_resident_mib();

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

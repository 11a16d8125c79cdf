#include "apps/bench/memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

#include "engine/memory.h"

namespace polygrad::bench {
namespace {

// A line of /proc/self/status such as "VmHWM:   123 kB", in MiB; 0 where there is none.
double status_mib(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    double kib = 0;
    if (word == key + ":" && file >> kib) return kib / 1024;
  }
  return 0;
}

// Sets VmHWM to the present size; see proc(5). Whether it worked.
bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good() && status_mib("VmHWM") < status_mib("VmRSS") + 1;
}

}  // namespace

double peak_resident_mib() { return status_mib("VmHWM"); }

SystemRequests system_requests(Device device) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {usage.ru_minflt, static_cast<std::int64_t>(memory_stats(device).fresh_allocations)};
}

PeakMemory::PeakMemory() {
  const bool counted = reset_peak();
  start_mib_ = status_mib("VmRSS");
  if (counted) return;
  largest_mib_ = start_mib_;
  sampler_ = std::thread([this] {
    while (!stop_) {
      largest_mib_ = std::max(largest_mib_.load(), status_mib("VmRSS"));
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  });
}

PeakMemory::~PeakMemory() {
  stop_ = true;
  if (sampler_.joinable()) sampler_.join();
}

double PeakMemory::growth_mib() const {
  const double largest = sampled() ? largest_mib_.load() : status_mib("VmHWM");
  return std::max(0.0, largest - start_mib_);
}

}  // namespace polygrad::bench

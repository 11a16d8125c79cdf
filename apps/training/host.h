// host: what a run is computed with: the program, the machine, the time. For start reports and the start row.
//
// Where this stands: beside trainer_report.cpp and dry_run.cpp, which print it. Nothing here changes a result.
#pragma once

#include <cstdint>
#include <string>

#include "apps/training/config.h"

namespace polygrad {

struct HostInfo {
  std::string name;                // of the machine in its network; "" where not known
  std::string cpu;                 // "AMD EPYC 9R14"; "" where not known
  std::uint64_t memory_bytes = 0;  // of the machine; 0: not known
};
HostInfo host_info();

// "gcc 12.2.0": what compiled this library.
std::string compiler_text();
// "2026-01-31T12:00:00Z", now.
std::string utc_time();
// The keys whose values are not the defaults, in the table's order: "model.depth=4, attention.phi=x3"; "" for none.
std::string changed_settings(const Config& config);

}  // namespace polygrad

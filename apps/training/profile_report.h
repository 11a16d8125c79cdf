// The tables that people read: what a Profiler found, by op and by module.
//
// Where this stands: between engine/profile.h and the programs; pure functions from rows to text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/profile.h"

namespace polygrad {

struct ProfileScale {
  std::int64_t steps = 1;     // that the rows cover: the tables show one
  int threads = 1;            // that computed
  double ceiling_gflops = 0;  // what products can give on these threads; 0: not measured, no shares of it
};

// One line for each op and phase, the longest first: calls and milliseconds of a step, share of the time; of what has
// products their rate, its share of the ceiling, the share of the threads' time inside products; the share in which
// threads had nothing to do; of what has no products GB/s. Then the phases' sums, and the sum of all: it is the time
// that passed. What takes less than a thousandth stands in one line.
std::string profile_by_op(const std::vector<ProfileRow>& rows, const ProfileScale& scale);
// The same by module: "blocks.0.mlp.fc1" and "blocks.11.mlp.fc1" count together as "blocks.*.mlp.fc1".
std::string profile_by_module(const std::vector<ProfileRow>& rows, const ProfileScale& scale);
// What the columns mean.
std::string profile_legend(const ProfileScale& scale);

}  // namespace polygrad

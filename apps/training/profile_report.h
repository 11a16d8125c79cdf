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
  std::int64_t steps = 1;  // that the rows cover: times are shown for one
  int threads = 1;
  double ceiling_gflops = 0;  // of the same threads; 0: no shares of the ceiling
};

// By phase and op: calls and milliseconds of a step, share of the time, GFLOP/s and share of the ceiling of what has
// products, GB/s of the operands for what has none.
std::string profile_by_op(const std::vector<ProfileRow>& rows, const ProfileScale& scale);
// By module and phase: "blocks.0.mlp" and "blocks.11.mlp" count together as "blocks.*.mlp".
std::string profile_by_module(const std::vector<ProfileRow>& rows, const ProfileScale& scale);

}  // namespace polygrad

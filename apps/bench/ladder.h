// A ladder: the same work done again and again, each rung by one more idea, from the formula as it stands to the
// library's kernel. For reading as much as for running.
//
// Where this stands: ladder_attention.cpp and ladder_layer_norm.cpp have the rungs; docs/performance.md walks up them.
// Read next: ladder_attention.cpp.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/bench/bench.h"

namespace polygrad::bench {

struct Rung {
  std::string name;  // what is new about it
  std::function<void()> run;
  std::function<std::vector<float>()> result;  // of the last run; not timed
};

// Measures each rung against the ceiling, in turns with it, and compares its result with the first one's: a line each.
// Throws InternalError where a rung's result differs by more than f32 explains.
std::vector<std::string> climb(const std::string& name, const std::vector<Rung>& rungs, double flops,
                               const Common& common);

std::vector<std::string> ladder_attention(const Common& common);
std::vector<std::string> ladder_layer_norm(const Common& common);

}  // namespace polygrad::bench

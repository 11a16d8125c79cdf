// Tables of where the time of a benchmark's steps goes: `--profile`.
#pragma once

#include <functional>

#include "apps/bench/ceiling.h"

namespace polygrad::bench {

// Runs `step` so many times and writes the tables, by op and by module, on stderr; the ceiling is taken in between.
void say_profile(const Limit& ceiling, int steps, const std::function<double()>& step);

}  // namespace polygrad::bench

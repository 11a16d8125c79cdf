#include "apps/bench/step_profile.h"

#include <vector>

#include "apps/bench/report.h"
#include "apps/training/profile_report.h"
#include "engine/parallel.h"
#include "engine/profile.h"

namespace polygrad::bench {

void say_profile(const Limit& ceiling, int steps, const std::function<double()>& step) {
  Profiler profiler;
  std::vector<double> ceilings;
  for (int i = 0; i < steps; ++i) {
    step();
    const Profiler aside;  // meanwhile the other rests
    ceilings.push_back(ceiling.measure(0.1));
  }
  const std::vector<ProfileRow> rows = profiler.rows();
  const ProfileScale scale{steps, num_threads(), median(ceilings)};
  say(false, profile_by_op(rows, scale));
  say(false, profile_by_module(rows, scale));
  say(false, profile_legend(scale));
}

}  // namespace polygrad::bench

#include "apps/bench/ladder.h"

#include <algorithm>
#include <cmath>

#include "apps/bench/ceiling.h"
#include "apps/bench/report.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad::bench {
namespace {

// The largest difference, divided by the largest magnitude of `expected`.
double normalised_error(const std::vector<float>& got, const std::vector<float>& expected) {
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i]));
    worst = std::isfinite(difference) ? std::max(worst, difference) : INFINITY;
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  return largest > 0 ? worst / largest : worst;
}

}  // namespace

std::vector<std::string> climb(const std::string& name, const std::vector<Rung>& rungs, double flops,
                               const Common& common) {
  constexpr double kTolerance = 1e-4;
  const Ceiling ceiling;
  std::vector<std::string> lines;
  std::vector<float> expected;
  double first_seconds = 0;
  for (const Rung& rung : rungs) {
    const Paired paired = measure_pairs(ceiling, flops, std::max(1, common.pairs), [&] {
      const double start = seconds();
      rung.run();
      return seconds() - start;
    });
    if (lines.empty()) expected = rung.result();
    const double error = normalised_error(rung.result(), expected);
    if (!(error < kTolerance)) {
      throw InternalError(format("[ladder] {}, rung '{}': differs from the first by {:.1e}; expected less than {:.0e}",
                                 name, rung.name, error, kTolerance));
    }
    if (lines.empty()) first_seconds = paired.seconds;
    say(common.quiet, format("{:<72} {:9.2f} ms, {:5.3f} of the ceiling, {:6.1f} x the first, error {:.0e}", rung.name,
                             1e3 * paired.seconds, paired.ratio, first_seconds / paired.seconds, error));
    lines.push_back(Report("ladder")
                        .add("name", name)
                        .add("step", static_cast<std::int64_t>(lines.size() + 1))
                        .add("rung", rung.name)
                        .add("ms", 1e3 * paired.seconds)
                        .add(paired)
                        .add("speedup", first_seconds / paired.seconds)
                        .add("max_error", error)
                        .line());
  }
  return lines;
}

std::vector<std::string> run_ladder(const LadderOptions& options, const Common& common) {
  if (options.name == "attention") return ladder_attention(common);
  if (options.name == "layer_norm") return ladder_layer_norm(common);
  throw ValueError(format("[ladder] --name {}: no such ladder; expected attention or layer_norm", options.name));
}

}  // namespace polygrad::bench

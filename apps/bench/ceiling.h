// The ceiling: what this machine's matrix units give right now, measured in turns with the subject.
//
// A product of two 2048 x 2048 matrices (f32), on as many threads as the subject, by the fastest provider of the build:
// each thread multiplies a slab of rows in one call, without any of our own planning. On a shared machine the speed
// changes from second to second; so each measurement of a subject stands beside one of the ceiling, and the ratio that
// is reported is the median of the paired ratios. A GPU has a ceiling of its own (gpu.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/gemm_provider.h"

namespace polygrad::bench {

// Seconds of a monotonic clock.
double seconds();
double median(std::vector<double> values);

// What a subject is measured against.
class Limit {
 public:
  virtual ~Limit() = default;
  // The rate of the products that fill about this many seconds (at least one), GFLOP/s.
  virtual double measure(double target_seconds) const = 0;
};

class Ceiling : public Limit {
 public:
  // Allocates the matrices, and finds the faster provider by trying each.
  Ceiling();
  double measure(double target_seconds) const override;

 private:
  double product() const;  // seconds

  static constexpr std::int64_t kSize = 2048;
  std::vector<float> a_, b_;
  mutable std::vector<float> c_;
  GemmProvider provider_ = GemmProvider::eigen;
};

struct Paired {
  double seconds = 0;         // of one run of the subject: median
  double gflops = 0;          // of the subject: median
  double ceiling_gflops = 0;  // median
  double ratio = 0;           // median of the pairs' ratios
};

// `pairs` of measure_pairs: as many as another program asks for.
constexpr int kTurns = 0;

// `subject` is run once to warm up, then `pairs` times for at least the time that the ceiling takes (0.1 to 1 s).
// It returns the seconds that count, which may be less than the whole call took.
// kTurns: programs take turns (make bench). A JSON line on stdout says that this one is ready; each line of stdin asks
// for one pair, whose numbers go to stdout as a line; at the end of stdin, or a line "end", the medians are taken.
// Throws ValueError where no turn came.
Paired measure_pairs(const Limit& ceiling, double flops, int pairs, const std::function<double()>& subject);

}  // namespace polygrad::bench

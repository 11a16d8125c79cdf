// Measuring on a GPU. It works behind the host's back, so no time here is the host's: many runs follow each other
// between two moments of the device, and the host waits once, at their end.
//
// Where this stands: in the place of ceiling.h's product and of the host's clock, for --device cuda:0. The ceiling is
// the rate of cuBLASLt on a large product in the subject's own precision (f32: without TF32), on random numbers: a
// GPU's matrix units are faster on zeros. Read next: gemm.cpp.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "apps/bench/bench.h"
#include "apps/bench/ceiling.h"
#include "engine/moment.h"
#include "engine/tensor.h"
#include "ops/precision.h"

namespace polygrad::bench {

// Runs behind each other.
class Batches {
 public:
  // `run` starts work on the device and doesn't wait. Three runs warm up, and tell how many fill a batch.
  Batches(Device device, std::function<void()> run);
  // One batch: the seconds of one of its runs.
  double operator()() const { return measure(runs_); }

 private:
  double measure(int runs) const;
  Device device_;
  std::function<void()> run_;
  int runs_ = 1;
};

// Parts of runs: what lies between pairs of moments of a device, CPU or GPU.
class Spans {
 public:
  void add(const Moment& start, const Moment& end) { spans_.emplace_back(start, end); }
  // The seconds of one, on average; waits for the last, and forgets them all.
  double mean();

 private:
  std::vector<std::pair<Moment, Moment>> spans_;
};

class GpuCeiling : public Limit {
 public:
  // Products of two size x size matrices.
  GpuCeiling(Device device, Precision precision, std::int64_t size);
  double measure(double target_seconds) const override;

 private:
  double flops_;
  Batches batches_;
};

// The ceiling for a subject of that precision: GpuCeiling, or the CPU's.
std::unique_ptr<Limit> make_ceiling(const Common& common, Precision precision);

// The dtype of activations under a PrecisionGuard.
DType storage_of(Precision precision);

}  // namespace polygrad::bench

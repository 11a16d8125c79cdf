#include "apps/bench/gpu.h"

#include <algorithm>
#include <cmath>

#include "engine/autograd.h"
#include "engine/factory.h"
#include "ops/matmul.h"

namespace polygrad::bench {
namespace {

constexpr double kBatchSeconds = 0.05;
constexpr int kLeastRuns = 3, kMostRuns = 5000;

std::function<void()> product(Device device, Precision precision, std::int64_t size) {
  Generator generator(1);
  const auto factor = [&] {
    return randn({size, size}, {.device = device, .generator = &generator}).to(storage_of(precision));
  };
  return [=, a = factor(), b = factor()] {
    const NoGradGuard no_grad;
    const PrecisionGuard guard(precision, device);
    matmul(a, b);
  };
}

}  // namespace

Batches::Batches(Device device, std::function<void()> run) : device_(device), run_(std::move(run)) {
  measure(1);  // libraries, kernels and memory are made
  const double once = measure(2);
  runs_ =
      static_cast<int>(std::clamp(std::ceil(kBatchSeconds / std::max(once, 1e-9)), 1.0 * kLeastRuns, 1.0 * kMostRuns));
}

double Batches::measure(int runs) const {
  const Moment start(device_);
  for (int i = 0; i < runs; ++i) run_();
  const Moment end(device_);
  return end.seconds_since(start) / runs;
}

double Spans::mean() {
  double spent = 0;
  for (const auto& [start, end] : spans_) spent += end.seconds_since(start);
  const double mean = spent / static_cast<double>(spans_.size());
  spans_.clear();
  return mean;
}

GpuCeiling::GpuCeiling(Device device, Precision precision, std::int64_t size)
    : flops_(2 * std::pow(static_cast<double>(size), 3)), batches_(device, product(device, precision, size)) {}

double GpuCeiling::measure(double target_seconds) const {
  const double start = seconds();
  double spent = 0;
  int batches = 0;
  do {
    spent += batches_();
    ++batches;
  } while (seconds() - start < target_seconds);  // each batch has waited, so the host's clock serves for this
  return 1e-9 * flops_ * batches / spent;
}

std::unique_ptr<Limit> make_ceiling(const Common& common, Precision precision) {
  if (common.on_gpu()) return std::make_unique<GpuCeiling>(common.device, precision, common.ceiling);
  return std::make_unique<Ceiling>();
}

DType storage_of(Precision precision) {
  return precision == Precision::f32 ? DType::f32 : precision == Precision::bf16 ? DType::bf16 : DType::f16;
}

}  // namespace polygrad::bench

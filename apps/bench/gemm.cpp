// polygrad_bench gemm: one matrix product, by the public op.
#include <cmath>

#include "apps/bench/bench.h"
#include "apps/bench/gpu.h"
#include "apps/bench/report.h"
#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/format.h"
#include "ops/matmul.h"
#include "ops/view.h"

namespace polygrad::bench {
namespace {

// |a b - c| / |c| in Frobenius' norm, on the first rows, with the product c of the same numbers in f64.
double relative_error(const Tensor& a, const Tensor& b) {
  const Tensor rows = slice(a, 0, 0, std::min<std::int64_t>(a.size(0), 64));
  const std::vector<double> got = matmul(rows, b).to(DType::f64).to_vector<double>();
  const std::vector<double> expected = matmul(rows.to(DType::f64), b.to(DType::f64)).to_vector<double>();
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return std::sqrt(difference / size);
}

}  // namespace

std::string run_gemm(const GemmOptions& options, const Common& common) {
  const Precision precision = precision_of("[gemm] --dtype", options.dtype, common.device);
  if (options.m < 1 || options.k < 1 || options.n < 1) {
    throw ValueError(format("[gemm] --m {} --k {} --n {}: sizes must be positive", options.m, options.k, options.n));
  }
  const NoGradGuard no_grad;
  const PrecisionGuard guard(precision, common.device);
  Generator generator(1);
  const auto factor = [&](std::int64_t rows, std::int64_t cols, bool turned) {
    const TensorOptions random{.device = common.device, .generator = &generator};
    const Tensor values = turned ? randn({cols, rows}, random) : randn({rows, cols}, random);
    const Tensor stored = values.to(storage_of(precision));
    return turned ? transpose(stored, 0, 1) : stored;
  };
  const Tensor a = factor(options.m, options.k, options.trans_a), b = factor(options.k, options.n, options.trans_b);
  const std::unique_ptr<Limit> ceiling = make_ceiling(common, precision);
  const double flops =
      2.0 * static_cast<double>(options.m) * static_cast<double>(options.k) * static_cast<double>(options.n);
  const auto on_cpu = [&] {
    const double start = seconds();
    const Tensor c = matmul(a, b);
    return seconds() - start;
  };
  const Paired paired =
      common.on_gpu() ? measure_pairs(*ceiling, flops, common.pairs, Batches(common.device, [&] { matmul(a, b); }))
                      : measure_pairs(*ceiling, flops, common.pairs, on_cpu);
  say(common.quiet, format("gemm {}x{}x{}: {:.3f} ms, {:.0f} GFLOP/s of {:.0f} ({:.2f})", options.m, options.k,
                           options.n, 1e3 * paired.seconds, paired.gflops, paired.ceiling_gflops, paired.ratio));
  Report report("gemm", common.device);
  report.add("m", options.m)
      .add("k", options.k)
      .add("n", options.n)
      .add("trans_a", options.trans_a)
      .add("trans_b", options.trans_b)
      .add("dtype", options.dtype)
      .add("ms", 1e3 * paired.seconds)
      .add(paired);
  if (common.on_gpu()) report.add("relative_error", relative_error(a, b));
  return report.line();
}

}  // namespace polygrad::bench

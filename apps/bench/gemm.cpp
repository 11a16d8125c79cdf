// polygrad_bench gemm: one matrix product, by the public op.
#include "apps/bench/bench.h"
#include "apps/bench/ceiling.h"
#include "apps/bench/report.h"
#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/format.h"
#include "ops/matmul.h"
#include "ops/view.h"

namespace polygrad::bench {

std::string run_gemm(const GemmOptions& options, const Common& common) {
  const Precision precision = precision_of("[gemm] --dtype", options.dtype);
  if (options.m < 1 || options.k < 1 || options.n < 1) {
    throw ValueError(format("[gemm] --m {} --k {} --n {}: sizes must be positive", options.m, options.k, options.n));
  }
  const NoGradGuard no_grad;
  const PrecisionGuard guard(precision);
  Generator generator(1);
  const auto factor = [&](std::int64_t rows, std::int64_t cols, bool turned) {
    const TensorOptions random{.generator = &generator};
    const Tensor values = turned ? randn({cols, rows}, random) : randn({rows, cols}, random);
    const Tensor stored = precision == Precision::bf16 ? values.to(DType::bf16) : values;
    return turned ? transpose(stored, 0, 1) : stored;
  };
  const Tensor a = factor(options.m, options.k, options.trans_a), b = factor(options.k, options.n, options.trans_b);
  const Ceiling ceiling;
  const double flops =
      2.0 * static_cast<double>(options.m) * static_cast<double>(options.k) * static_cast<double>(options.n);
  const Paired paired = measure_pairs(ceiling, flops, common.pairs, [&] {
    const double start = seconds();
    const Tensor c = matmul(a, b);
    return seconds() - start;
  });
  say(common.quiet, format("gemm {}x{}x{}: {:.3f} ms, {:.0f} GFLOP/s of {:.0f} ({:.2f})", options.m, options.k,
                           options.n, 1e3 * paired.seconds, paired.gflops, paired.ceiling_gflops, paired.ratio));
  return Report("gemm")
      .add("m", options.m)
      .add("k", options.k)
      .add("n", options.n)
      .add("trans_a", options.trans_a)
      .add("trans_b", options.trans_b)
      .add("dtype", options.dtype)
      .add("ms", 1e3 * paired.seconds)
      .add(paired)
      .line();
}

}  // namespace polygrad::bench

// The ladder of layer norm, with the product that reads it: y = norm(x) W^T, as every half of a transformer block
// begins. 8224 rows of width 192, 576 columns. The product is the same on all rungs but the last; what changes is how
// often the rows cross the memory bus before it. Read next: ops/cpu/norm_rows.h, ops/cpu/pre_norm.cpp.
#include <cmath>

#include "apps/bench/ladder.h"
#include "engine/autograd.h"
#include "engine/factory.h"
#include "engine/generator.h"
#include "engine/parallel.h"
#include "ops/binary.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/pre_norm.h"
#include "ops/reduce.h"
#include "ops/unary.h"

namespace polygrad::bench {
namespace {

constexpr std::int64_t kRows = 8224, kWidth = 192, kColumns = 576;
constexpr double kEps = 1e-6;

// One row, x to y: sums in f64, one after another, as the definition says.
void row_as_written(const float* x, const float* weight, const float* bias, float* y) {
  double mean = 0, variance = 0;
  for (std::int64_t i = 0; i < kWidth; ++i) mean += static_cast<double>(x[i]);
  mean /= kWidth;
  for (std::int64_t i = 0; i < kWidth; ++i) {
    const double centred = static_cast<double>(x[i]) - mean;
    variance += centred * centred;
  }
  const double inverse = 1 / std::sqrt(variance / kWidth + kEps);
  for (std::int64_t i = 0; i < kWidth; ++i) {
    y[i] = static_cast<float>((static_cast<double>(x[i]) - mean) * inverse) * weight[i] + bias[i];
  }
}

// The same with eight sums that do not wait for each other, in f32: a vector register's worth of additions at a time.
void row_in_lanes(const float* x, const float* weight, const float* bias, float* y) {
  constexpr std::int64_t kLanes = 8;
  float sums[kLanes] = {}, squares[kLanes] = {};
  for (std::int64_t i = 0; i < kWidth; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane];
  }
  float mean = 0, variance = 0;
  for (const float sum : sums) mean += sum;
  mean /= kWidth;
  for (std::int64_t i = 0; i < kWidth; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const float centred = x[i + lane] - mean;
      squares[lane] += centred * centred;
    }
  }
  for (const float square : squares) variance += square;
  const float inverse = 1 / std::sqrt(variance / kWidth + static_cast<float>(kEps));
  for (std::int64_t i = 0; i < kWidth; ++i) y[i] = (x[i] - mean) * inverse * weight[i] + bias[i];
}

}  // namespace

std::vector<std::string> ladder_layer_norm(const Common& common) {
  const NoGradGuard no_grad;
  Generator generator(1);
  const auto random = [&](const Shape& shape) { return randn(shape, {.generator = &generator}); };
  const Tensor x = random({kRows, kWidth}), weight = random({kWidth}), bias = random({kWidth});
  const Tensor product_weight = random({kColumns, kWidth}), product_bias = random({kColumns});
  Tensor normalised = Tensor::empty({kRows, kWidth});

  Tensor last;
  const auto rows = [&](auto&& row, bool threads) {
    const float *from = x.data<float>(), *w = weight.data<float>(), *b = bias.data<float>();
    float* to = normalised.data<float>();
    const auto range = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin * kWidth; i < end * kWidth; i += kWidth) row(from + i, w, b, to + i);
    };
    if (threads) parallel_for(0, kRows, 64, range);
    if (!threads) range(0, kRows);
    last = linear(normalised, product_weight, product_bias);
  };
  const auto op_by_op = [&] {
    const Tensor centred = sub(x, mean(x, {-1}, true));
    const Tensor deviation = sqrt(add(mean(square(centred), {-1}, true), kEps));
    last = linear(add(mul(div(centred, deviation), weight), bias), product_weight, product_bias);
  };

  const auto op = [&] { last = linear(layer_norm(x, weight, bias, kEps), product_weight, product_bias); };
  const auto fused = [&] { last = pre_norm_linear(x, {weight, bias, kEps}, {product_weight, product_bias}); };
  const auto result = [&] { return last.to_vector<float>(); };
  return climb("layer_norm",
               {{"op by op: eight passes over memory", op_by_op, result},
                {"row by row, in the cache; one thread", [&] { rows(row_as_written, false); }, result},
                {"the rows shared among the threads", [&] { rows(row_as_written, true); }, result},
                {"eight sums at a time, in f32", [&] { rows(row_in_lanes, true); }, result},
                {"the op: sums over vector registers", op, result},
                {"fused with the product: a block of rows is multiplied while in the cache", fused, result}},
               2.0 * kRows * kWidth * kColumns, common);
}

}  // namespace polygrad::bench

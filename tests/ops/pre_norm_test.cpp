// The fused halves of a transformer block: equal to their composition, in blocks and groups of any size, the same bits
// for any number of threads, and only what is needed; the plan; errors.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/parallel.h"
#include "ops/cpu/row_blocks.h"
#include "ops/dropout.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/pre_norm.h"
#include "ops/precision.h"
#include "tests/support/skip.h"

using namespace polygrad;

namespace {

constexpr double kEps = 1e-6;

struct Case {
  Shape x;
  std::int64_t hidden;
  double p;
};

Tensor normal(const Shape& shape, std::uint64_t seed, DType dtype, double scale = 1, double shift = 0) {
  Generator generator(seed);
  Tensor values = randn(shape, {.dtype = DType::f64, .generator = &generator});
  double* data = values.data<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i) data[i] = data[i] * scale + shift;
  return values.to(dtype).set_requires_grad(true);
}

// x, norm weight and bias, fc1 weight and bias, fc2 weight and bias.
std::vector<Tensor> inputs_of(const Case& c, DType dtype) {
  const std::int64_t dim = c.x.back();
  const double in = 1 / std::sqrt(static_cast<double>(dim)), middle = 1 / std::sqrt(static_cast<double>(c.hidden));
  return {normal(c.x, 1, dtype, 2, 0.5),     normal({dim}, 2, dtype, 0.3, 1),
          normal({dim}, 3, dtype, 0.2),      normal({c.hidden, dim}, 4, dtype, in),
          normal({c.hidden}, 5, dtype, 0.3), normal({dim, c.hidden}, 6, dtype, middle),
          normal({dim}, 7, dtype, 0.3)};
}

using Op = std::function<Tensor(const std::vector<Tensor>&, double p)>;

Tensor fused_mlp(const std::vector<Tensor>& t, double p) {
  Generator generator(9, 4, 3);
  return pre_norm_mlp(t[0], {t[1], t[2], kEps}, {t[3], t[4]}, {t[5], t[6]}, {p, &generator});
}
Tensor composed_mlp(const std::vector<Tensor>& t, double p) {
  Generator generator(9, 4, 3);
  const Tensor hidden = linear_gelu(layer_norm(t[0], t[1], t[2], kEps), t[3], t[4]);
  return residual_add(t[0], linear(hidden, t[5], t[6]), p, &generator);
}
// Norm, linear, then a projection back: both of the other ops.
Tensor fused_linears(const std::vector<Tensor>& t, double p) {
  Generator generator(9, 4, 3);
  return linear_residual(t[0], pre_norm_linear(t[0], {t[1], t[2], kEps}, {t[3], t[4]}), {t[5], t[6]}, {p, &generator});
}
Tensor composed_linears(const std::vector<Tensor>& t, double p) {
  Generator generator(9, 4, 3);
  const Tensor middle = linear(layer_norm(t[0], t[1], t[2], kEps), t[3], t[4]);
  return residual_add(t[0], linear(middle, t[5], t[6]), p, &generator);
}

// The value, then every gradient.
std::vector<Tensor> run(const Op& op, const Case& c, DType dtype) {
  std::vector<Tensor> inputs = inputs_of(c, dtype);
  const Tensor y = op(inputs, c.p);
  std::vector<Tensor> results = {y.detach()};
  for (const Tensor& g : grad(y, inputs, normal(y.shape(), 8, dtype).detach())) results.push_back(g);
  return results;
}

// The largest difference over the largest value of b.
double relative_difference(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  const std::vector<double> x = a.to(DType::f64).to_vector<double>(), y = b.to(DType::f64).to_vector<double>();
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = std::abs(x[i] - y[i]);
    difference = d <= difference ? difference : d;  // a NaN stays
    largest = std::max(largest, std::abs(y[i]));
  }
  return difference / std::max(largest, 1e-30);
}

const Case kCases[] = {
    {{1, 1, 8}, 16, 0},         // one row
    {{3, 5, 12}, 20, 0.5},      // one block
    {{2, 257, 24}, 40, 0.4},    // a remainder of two rows
    {{5, 257, 16}, 64, 0},      // two groups; the weight is turned
    {{33, 65, 40}, 33, 0.3},    // odd sizes, several groups
    {{9, 300, 192}, 768, 0.1},  // blocks smaller than the largest
};

}  // namespace

TEST_CASE("fused = composed, value and every gradient") {
  const std::pair<Op, Op> pairs[] = {{fused_mlp, composed_mlp}, {fused_linears, composed_linears}};
  for (const auto& [fused, composed] : pairs) {
    for (const Case& c : kCases) {
      CAPTURE(c.x.dim());
      CAPTURE(c.x[1]);
      for (const DType dtype : {DType::f32, DType::f64}) {
        const std::vector<Tensor> ours = run(fused, c, dtype), theirs = run(composed, c, dtype);
        for (std::size_t i = 0; i < ours.size(); ++i) {
          CAPTURE(i);
          CHECK(relative_difference(ours[i], theirs[i]) <= (dtype == DType::f32 ? 5e-6 : 1e-13));
        }
      }
    }
  }
}

TEST_CASE("in bf16: fused = composed, value and every gradient, within what is rounded differently") {
  if (!precision_obstacle(Precision::bf16).empty()) return testing::skip("no bf16 units: this CPU, or no oneDNN");
  const std::pair<Op, Op> pairs[] = {{fused_mlp, composed_mlp}, {fused_linears, composed_linears}};
  for (const auto& [fused, composed] : pairs) {
    for (const Case& c : kCases) {
      CAPTURE(c.x.dim());
      CAPTURE(c.x[1]);
      const std::vector<Tensor> exact = run(composed, c, DType::f32);
      const PrecisionGuard guard(Precision::bf16);
      const std::vector<Tensor> ours = run(fused, c, DType::f32), theirs = run(composed, c, DType::f32);
      for (std::size_t i = 0; i < ours.size(); ++i) {
        CAPTURE(i);
        CHECK(ours[i].dtype() == DType::f32);
        CHECK(relative_difference(ours[i], exact[i]) <= 2e-2);
        // And no farther from f32 than the composition is.
        CHECK(relative_difference(ours[i], exact[i]) <= 1.3 * relative_difference(theirs[i], exact[i]) + 1e-3);
      }
    }
  }
}

TEST_CASE("in bf16: the same bits for any number of threads, and each gradient alone") {
  if (!precision_obstacle(Precision::bf16).empty()) return testing::skip("no bf16 units: this CPU, or no oneDNN");
  const PrecisionGuard precision(Precision::bf16);
  const Case c = {{33, 65, 40}, 33, 0.3};
  for (const Op& op : {Op(fused_mlp), Op(fused_linears)}) {
    std::vector<Tensor> first;
    for (const int threads : {1, 2, 3, 16}) {
      const NumThreadsGuard guard(threads);
      const std::vector<Tensor> results = run(op, c, DType::f32);
      if (first.empty()) first = results;
      for (std::size_t i = 0; i < results.size(); ++i) {
        CHECK(results[i].to_vector<float>() == first[i].to_vector<float>());
      }
    }
    for (std::size_t i = 0; i < 7; ++i) {
      CAPTURE(i);
      std::vector<Tensor> inputs = inputs_of(c, DType::f32);
      for (std::size_t other = 0; other < inputs.size(); ++other) {
        if (other != i) inputs[other] = inputs[other].detach();
      }
      const Tensor y = op(inputs, c.p);
      const std::vector<Tensor> alone = grad(y, {inputs[i]}, normal(y.shape(), 8, DType::f32).detach());
      CHECK(alone[0].to_vector<float>() == first[i + 1].to_vector<float>());
    }
  }
}

TEST_CASE("in bf16: linear_residual's x may be f32 too, and gets a gradient of its dtype") {
  if (!precision_obstacle(Precision::bf16).empty()) return testing::skip("no bf16 units: this CPU, or no oneDNN");
  const Tensor residual = normal({20, 12}, 1, DType::f32), weight = normal({12, 24}, 2, DType::f32),
               bias = normal({12}, 3, DType::f32), g = normal({20, 12}, 4, DType::f32).detach();
  const Tensor narrow = normal({20, 24}, 5, DType::f32).detach().to(DType::bf16).set_requires_grad(true);
  const Tensor wide = narrow.detach().to(DType::f32).set_requires_grad(true);
  const PrecisionGuard precision(Precision::bf16);
  const Tensor y = linear_residual(residual, narrow, {weight, bias}),
               same = linear_residual(residual, wide, {weight, bias});
  CHECK(y.to_vector<float>() == same.to_vector<float>());
  const std::vector<Tensor> of_narrow = grad(y, {narrow, weight}, g), of_wide = grad(same, {wide, weight}, g);
  CHECK(of_narrow[0].dtype() == DType::bf16);
  CHECK(of_wide[0].dtype() == DType::f32);
  CHECK(relative_difference(of_narrow[0], of_wide[0]) <= 0x1p-8);
  CHECK(of_narrow[1].to_vector<float>() == of_wide[1].to_vector<float>());
}

TEST_CASE("the same bits for 1, 2, 3 and 16 threads") {
  for (const Op& op : {Op(fused_mlp), Op(fused_linears)}) {
    std::vector<Tensor> first;
    for (const int threads : {1, 2, 3, 16}) {
      const NumThreadsGuard guard(threads);
      const std::vector<Tensor> results = run(op, {{33, 65, 40}, 33, 0.3}, DType::f32);
      if (first.empty()) first = results;
      for (std::size_t i = 0; i < results.size(); ++i) {
        CHECK(results[i].to_vector<float>() == first[i].to_vector<float>());
      }
    }
  }
}

TEST_CASE("each gradient alone equals the one computed with all others") {
  for (const Op& op : {Op(fused_mlp), Op(fused_linears)}) {
    const Case c = {{2, 300, 24}, 40, 0.4};
    const std::vector<Tensor> all = run(op, c, DType::f64);
    for (std::size_t i = 0; i < 7; ++i) {
      CAPTURE(i);
      std::vector<Tensor> inputs = inputs_of(c, DType::f64);
      for (std::size_t other = 0; other < inputs.size(); ++other) {
        if (other != i) inputs[other] = inputs[other].detach();
      }
      const Tensor y = op(inputs, c.p);
      const std::vector<Tensor> alone = grad(y, {inputs[i]}, normal(y.shape(), 8, DType::f64).detach());
      CHECK(alone[0].to_vector<double>() == all[i + 1].to_vector<double>());
    }
  }
}

TEST_CASE("a dropped sample passes through, whatever its branch holds, and gives the parameters nothing") {
  // At p close to 1 with this stream all samples but a few are dropped: those rows equal x.
  const Case c = {{16, 3, 8}, 12, 0.9};
  const std::vector<Tensor> inputs = inputs_of(c, DType::f64);
  const std::vector<double> x = inputs[0].to_vector<double>(), y = fused_mlp(inputs, c.p).to_vector<double>();
  int equal = 0;
  for (std::size_t b = 0; b < 16; ++b) {
    equal += std::equal(x.begin() + static_cast<std::ptrdiff_t>(24 * b),
                        x.begin() + static_cast<std::ptrdiff_t>(24 * (b + 1)),
                        y.begin() + static_cast<std::ptrdiff_t>(24 * b));
  }
  CHECK(equal >= 10);
  CHECK(equal < 16);
}

TEST_CASE("the plan of rows: blocks cover all rows in order, groups all blocks; it fits the cache") {
  for (const std::int64_t rows : {0, 1, 15, 16, 63, 64, 257, 1000, 8224, 100000}) {
    for (const std::int64_t width : {1, 400, 1920, 8000}) {
      CAPTURE(rows);
      CAPTURE(width);
      const cpu::RowPlan plan = cpu::plan_rows(rows, width);
      std::int64_t next = 0;
      for (std::int64_t block = 0; block < plan.blocks; ++block) {
        const cpu::RowRange range = plan.rows_of(block);
        CHECK(range.begin == next);
        CHECK(range.count >= (rows < 16 ? 1 : 16));
        CHECK(range.count <= plan.largest_block());
        next += range.count;
      }
      CHECK(next == rows);
      CHECK(plan.first_block(0) == 0);
      CHECK(plan.first_block(plan.groups) == plan.blocks);
      CHECK(plan.groups >= 1);
      CHECK(plan.groups <= 16);
      CHECK(plan.block >= 64);
      CHECK(plan.block <= 256);
      CHECK((plan.block == 64 || plan.block * width <= (1 << 18)));
    }
  }
  CHECK(cpu::plan_rows(8224, 1920).block == 128);
  CHECK(cpu::plan_rows(8224, 1920).groups == 16);
}

TEST_CASE("errors name op, argument and both shapes") {
  const std::vector<Tensor> t = inputs_of({{2, 3, 4}, 6, 0}, DType::f32);
  const auto message = [](const std::function<void()>& f) {
    try {
      f();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message([&] {
          pre_norm_linear(t[0], {t[4], t[2], kEps}, {t[3], t[4]});
        }) == "[pre_norm_linear] norm.weight does not fit: x (2, 3, 4), norm.weight (6); expected (4)");
  CHECK(message([&] {
          pre_norm_linear(t[0], {t[1], t[2], kEps}, {t[5], t[4]});
        }) == "[pre_norm_linear] linear does not fit: x (2, 3, 4), linear (4, 6); expected (4, 4)");
  CHECK(message([&] {
          linear_residual(t[0], t[0], {t[3], t[4]});
        }) == "[linear_residual] residual does not fit: x (2, 3, 4), residual (2, 3, 4); expected (2, 3, 6)");
  CHECK(message([&] {
          pre_norm_mlp(t[0], {t[1], t[2], kEps}, {t[3], t[4]}, {t[3], t[4]});
        }) == "[pre_norm_mlp] fc2 does not fit: x (2, 3, 4), fc2 (6, 4); expected (4, 6)");
  CHECK(message([&] {
          pre_norm_mlp(t[0], {t[1], t[2], -1}, {t[3], t[4]}, {t[5], t[6]});
        }) == "[pre_norm_mlp] norm.eps must not be negative: got -1");
  CHECK(message([&] {
          pre_norm_mlp(t[0], {t[1], t[2], kEps}, {t[3], t[4]}, {t[5], t[6]}, {0.5, nullptr});
        }) == "[pre_norm_mlp] drop.p = 0.5 without a generator; expected one to draw from");
  CHECK(message([&] {
          pre_norm_linear(t[0], {t[1], Tensor(), kEps}, {t[3], t[4]});
        }).find("norm.bias is an undefined tensor") != std::string::npos);
}

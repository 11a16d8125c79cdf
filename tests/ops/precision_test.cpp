// Mixed precision: the guard, what the ops under it compute, and the weights that are rounded once.
#include "ops/precision.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/memory.h"
#include "engine/parallel.h"
#include "ops/attention.h"
#include "ops/dropout.h"
#include "ops/gemm_provider.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/pre_norm.h"
#include "ops/unary.h"
#include "ops/view.h"
#include "tests/support/skip.h"

using namespace polygrad;

#define SKIP_WITHOUT_BF16_UNITS                     \
  if (!precision_obstacle(Precision::bf16).empty()) \
  return polygrad::testing::skip("no bf16 units: this CPU, or no oneDNN")

namespace {

Tensor normal(const Shape& shape, std::uint64_t seed, bool requires_grad = false) {
  Generator generator(seed);
  return randn(shape, {.generator = &generator}).set_requires_grad(requires_grad);
}

Tensor to_bf16(const Tensor& x) { return x.detach().to(DType::bf16); }

std::vector<double> values(const Tensor& x) { return x.detach().to(DType::f64).contiguous().to_vector<double>(); }

// The largest difference, in units of the largest value of b.
double distance(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = values(a), y = values(b);
  REQUIRE(x.size() == y.size());
  double largest = 1e-30, difference = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    largest = std::max(largest, std::abs(y[i]));
    difference = std::abs(x[i] - y[i]) <= difference ? difference : std::abs(x[i] - y[i]);
  }
  return difference / largest;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = a.detach().contiguous(), y = b.detach().contiguous();
  return x.dtype() == y.dtype() && x.shape() == y.shape() &&
         std::memcmp(x.ref().data, y.ref().data, static_cast<std::size_t>(x.numel()) * dtype_size(x.dtype())) == 0;
}

constexpr double kHalfUnit = 0x1p-8;  // of bf16, relative
constexpr double kSums = 1e-5;        // what the order of an f32 sum may change

// The same op on the rounded operands in f64: what bf16 products would be without any rounding of sums and results.
struct Twin {
  Tensor y, dx, dweight, dbias;
};
template <class F>
Twin exact(const F& f, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& g) {
  const auto wide = [](const Tensor& t) { return to_bf16(t).to(DType::f64).set_requires_grad(true); };
  const Tensor x64 = wide(x), w64 = wide(weight), b64 = bias.detach().to(DType::f64).set_requires_grad(true);
  const Tensor y = f(x64, w64, b64);
  const std::vector<Tensor> gradients = grad(y, {x64, w64, b64}, to_bf16(g).to(DType::f64));
  return {y.detach(), gradients[0], gradients[1], gradients[2]};
}

}  // namespace

TEST_CASE("a guard is the thread's, nests, and ends with its scope") {
  SKIP_WITHOUT_BF16_UNITS;
  CHECK(current_precision() == Precision::f32);
  {
    const PrecisionGuard outer(Precision::bf16);
    CHECK(current_precision() == Precision::bf16);
    {
      const PrecisionGuard inner(Precision::f32);
      CHECK(current_precision() == Precision::f32);
      CHECK(linear(normal({2, 3}, 1), normal({4, 3}, 2)).dtype() == DType::f32);
      const PrecisionGuard innermost(Precision::bf16);
      CHECK(current_precision() == Precision::bf16);
      CHECK(linear(normal({2, 3}, 1), normal({4, 3}, 2)).dtype() == DType::bf16);
    }
    CHECK(current_precision() == Precision::bf16);
    Precision elsewhere = Precision::bf16;
    std::thread([&] { elsewhere = current_precision(); }).join();
    CHECK(elsewhere == Precision::f32);
    CHECK_THROWS_AS(PrecisionGuard(Precision::f16), NotImplementedError);
    CHECK(current_precision() == Precision::bf16);
  }
  CHECK(current_precision() == Precision::f32);
}

TEST_CASE("what can't be computed is refused, and says what to do") {
  CHECK(std::string(to_string(Precision::f32)) == "f32");
  CHECK(std::string(to_string(Precision::bf16)) == "bf16");
  CHECK(std::string(to_string(Precision::f16)) == "f16");
  CHECK(precision_obstacle(Precision::f32) == "");
  CHECK(precision_obstacle(Precision::f16) == "f16 products are not available on the CPU; use bf16 or f32");
  CHECK_THROWS_WITH_AS(PrecisionGuard(Precision::f16),
                       "[PrecisionGuard] f16 products are not available on the CPU; use bf16 or f32",
                       NotImplementedError);
  if (!has_gemm_provider(GemmProvider::onednn)) {
    CHECK(precision_obstacle(Precision::bf16).find("-DPOLYGRAD_ONEDNN=ON") != std::string::npos);
    return;
  }
  const GemmProvider before = gemm_provider();
  set_gemm_provider(GemmProvider::eigen);
  const std::string obstacle = precision_obstacle(Precision::bf16);
  set_gemm_provider(before);
  CHECK(obstacle ==
        "bf16 products on the CPU are oneDNN's, and the gemm provider is eigen; choose onednn (POLYGRAD_GEMM, "
        "set_gemm_provider), or use f32");
}

TEST_CASE("linear: the product of the rounded operands, its sums in f32, rounded once; gradients likewise") {
  SKIP_WITHOUT_BF16_UNITS;
  for (const bool narrow_x : {false, true}) {
    for (const Shape& shape : {Shape{40, 33}, Shape{3, 7, 64}, Shape{64}}) {
      const std::int64_t in = shape.back(), out = 48;
      const Tensor weight = normal({out, in}, 2, true), bias = normal({out}, 3, true);
      const Tensor x = narrow_x ? to_bf16(normal(shape, 1)).set_requires_grad(true) : normal(shape, 1, true);
      Shape y_shape = shape;
      y_shape[y_shape.dim() - 1] = out;
      const Tensor g = normal(y_shape, 4);
      const Twin twin =
          exact([](const Tensor& a, const Tensor& b, const Tensor& c) { return linear(a, b, c); }, x, weight, bias, g);
      std::vector<Tensor> gradients;
      {
        const PrecisionGuard guard(Precision::bf16);
        const Tensor y = linear(x, weight, bias);
        CHECK(y.dtype() == DType::bf16);
        CHECK(distance(y, twin.y) <= kHalfUnit + kSums);
        gradients = grad(y, {x, weight, bias}, to_bf16(g), true);
        const Tensor again = linear(x, weight, bias);
        CHECK(same_bits(y, again));
        gradients = grad(again, {x, weight, bias}, to_bf16(g), true);
      }
      CHECK(gradients[0].dtype() == x.dtype());
      CHECK(gradients[1].dtype() == DType::f32);
      CHECK(gradients[2].dtype() == DType::f32);
      CHECK(distance(gradients[0], twin.dx) <= (narrow_x ? kHalfUnit : 0) + kSums);
      CHECK(distance(gradients[1], twin.dweight) <= kSums);
      CHECK(distance(gradients[2], twin.dbias) <= kSums);
    }
  }
}

TEST_CASE("linear_gelu: gelu of the rounded argument, and the gradient at it") {
  SKIP_WITHOUT_BF16_UNITS;
  for (const bool with_bias : {false, true}) {
    const Tensor x = to_bf16(normal({50, 32}, 1)).set_requires_grad(true), weight = normal({40, 32}, 2, true),
                 bias = with_bias ? normal({40}, 3, true) : Tensor();
    const Tensor g = to_bf16(normal({50, 40}, 4));
    const PrecisionGuard guard(Precision::bf16);
    const Tensor y = linear_gelu(x, weight, bias);
    CHECK(y.dtype() == DType::bf16);
    // The same in two steps: one more rounding in neither.
    const Tensor pre = linear(x, weight, bias);
    const Tensor wide = pre.detach().to(DType::f32).set_requires_grad(true);
    const Tensor activated = gelu(wide);
    CHECK(same_bits(y, activated.to(DType::bf16)));
    {
      const NoGradGuard no_grad;  // without keeping the argument
      CHECK(same_bits(y, linear_gelu(x, weight, bias)));
    }
    const Tensor grad_pre = grad(activated, {wide}, g.to(DType::f32))[0];
    std::vector<Tensor> leaves = {x, weight};
    if (with_bias) leaves.push_back(bias);
    const std::vector<Tensor> expected = grad(pre, leaves, to_bf16(grad_pre)), got = grad(y, leaves, g);
    for (std::size_t i = 0; i < 2; ++i) CHECK(same_bits(expected[i], got[i]));
    if (with_bias) CHECK(distance(got[2], expected[2]) <= kHalfUnit);  // summed before the rounding
  }
}

TEST_CASE("matmul: each factor f32 or bf16, each gradient in its factor's dtype") {
  SKIP_WITHOUT_BF16_UNITS;
  for (const bool narrow_a : {false, true}) {
    const Tensor a = narrow_a ? to_bf16(normal({3, 5, 9}, 1)).set_requires_grad(true) : normal({3, 5, 9}, 1, true);
    const Tensor b = transpose(normal({6, 9}, 2), 0, 1).detach().set_requires_grad(true);
    const Tensor a64 = to_bf16(a).to(DType::f64).set_requires_grad(true),
                 b64 = to_bf16(b).to(DType::f64).set_requires_grad(true);
    const Tensor g = to_bf16(normal({3, 5, 6}, 3)), y64 = matmul(a64, b64);
    const std::vector<Tensor> expected = grad(y64, {a64, b64}, g.to(DType::f64));
    const PrecisionGuard guard(Precision::bf16);
    const Tensor y = matmul(a, b);
    CHECK(y.dtype() == DType::bf16);
    CHECK(distance(y, y64) <= kHalfUnit + kSums);
    const std::vector<Tensor> got = grad(y, {a, b}, g);
    CHECK(got[0].dtype() == a.dtype());
    CHECK(got[1].dtype() == DType::f32);
    CHECK(distance(got[0], expected[0]) <= (narrow_a ? kHalfUnit : 0) + kSums);
    CHECK(distance(got[1], expected[1]) <= kSums);
  }
}

TEST_CASE("layer_norm computes in f32 and rounds its result") {
  SKIP_WITHOUT_BF16_UNITS;
  for (const bool narrow_x : {false, true}) {
    const Tensor wide = to_bf16(normal({70, 37}, 1)).to(DType::f32).set_requires_grad(true);
    const Tensor x = narrow_x ? to_bf16(wide).set_requires_grad(true) : wide;
    const Tensor weight = normal({37}, 2, true), bias = normal({37}, 3, true);
    const Tensor g = to_bf16(normal({70, 37}, 4));
    const Tensor y32 = layer_norm(wide, weight, bias);
    const std::vector<Tensor> expected = grad(y32, {wide, weight, bias}, g.to(DType::f32));
    const PrecisionGuard guard(Precision::bf16);
    const Tensor y = layer_norm(x, weight, bias);
    CHECK(same_bits(y, to_bf16(y32)));
    const std::vector<Tensor> got = grad(y, {x, weight, bias}, g);
    CHECK(same_bits(got[0], expected[0].to(x.dtype())));
    for (std::size_t i : {1u, 2u}) CHECK(same_bits(got[i], expected[i]));
  }
}

TEST_CASE("residual_add brings a bf16 branch back into the f32 stream") {
  for (const double p : {0.0, 0.5}) {
    const Tensor x = normal({8, 5, 7}, 1, true), branch = to_bf16(normal({8, 5, 7}, 2)).set_requires_grad(true);
    const Tensor wide = branch.detach().to(DType::f32).set_requires_grad(true), g = normal({8, 5, 7}, 3);
    Generator first(5), second(5);
    const Tensor y = residual_add(x, branch, p, &first), expected = residual_add(x, wide, p, &second);
    CHECK(same_bits(y, expected));
    const std::vector<Tensor> got = grad(y, {x, branch}, g), of_wide = grad(expected, {x, wide}, g);
    CHECK(same_bits(got[0], of_wide[0]));
    CHECK(got[1].dtype() == DType::bf16);
    CHECK(distance(got[1], of_wide[1]) <= kHalfUnit);
  }
  CHECK_THROWS_AS(residual_add(to_bf16(normal({2}, 1)), normal({2}, 2)), DTypeError);
  CHECK_THROWS_AS(residual_add(normal({2}, 1), normal({2}, 2).to(DType::f16)), DTypeError);
  CHECK_THROWS_AS(residual_add(normal({2}, 1).to(DType::f64), to_bf16(normal({2}, 2))), DTypeError);
}

TEST_CASE("dropout and drop_path of bf16 drop what they drop of f32") {
  const Tensor x = to_bf16(normal({6, 70}, 1)).set_requires_grad(true);
  const Tensor wide = x.detach().to(DType::f32).set_requires_grad(true), g = to_bf16(normal({6, 70}, 2));
  const auto check = [&](auto op) {
    Generator first(5), second(5);
    const Tensor y = op(x, 0.5, first), expected = op(wide, 0.5, second);  // kept times 2: exact
    CHECK(same_bits(y, to_bf16(expected)));
    CHECK(same_bits(grad(y, {x}, g)[0], to_bf16(grad(expected, {wide}, g.to(DType::f32))[0])));
  };
  check([](const Tensor& t, double p, Generator& generator) { return dropout(t, p, generator); });
  check([](const Tensor& t, double p, Generator& generator) { return drop_path(t, p, generator); });
}

TEST_CASE("attention under a guard is that of the rounded rows") {
  SKIP_WITHOUT_BF16_UNITS;
  AttentionParams params;
  params.phi = parse_activation("x3");
  params.divisor = 4;
  const Tensor qkv = to_bf16(normal({2, 9, 3, 2, 8}, 1)).set_requires_grad(true), g = to_bf16(normal({2, 9, 16}, 2));
  const Tensor wide = qkv.detach().to(DType::f32).set_requires_grad(true);
  const Tensor expected = attention_qkv(wide, params);
  const PrecisionGuard guard(Precision::bf16);
  const Tensor y = attention_qkv(qkv, params);
  CHECK(y.dtype() == DType::bf16);
  CHECK(distance(y, expected) <= 2e-2);
  CHECK(distance(grad(y, {qkv}, g)[0], grad(expected, {wide}, g.to(DType::f32))[0]) <= 2e-2);
  const auto head = [&](int which) { return permute(select(qkv, 2, which), {0, 2, 1, 3}); };
  CHECK(distance(attention(head(0), head(1), head(2), params), expected) <= 2e-2);
}

TEST_CASE("f64 is never touched") {
  SKIP_WITHOUT_BF16_UNITS;
  const Tensor x = normal({9, 12}, 1).to(DType::f64), weight = normal({7, 12}, 2).to(DType::f64);
  const Tensor linear_before = linear(x, weight), norm_before = layer_norm(x);
  const PrecisionGuard guard(Precision::bf16);
  CHECK(same_bits(linear(x, weight), linear_before));
  CHECK(same_bits(layer_norm(x), norm_before));
}

TEST_CASE("nothing is promoted: what the dtypes must be") {
  SKIP_WITHOUT_BF16_UNITS;
  const Tensor x = to_bf16(normal({2, 3}, 1)), weight = normal({4, 3}, 2), bias = normal({4}, 3);
  CHECK_THROWS_WITH_AS(linear(x, weight),
                       "[linear] wrong dtype: expected f32 or f64, got bf16 (2, 3) on cpu; convert it with to()",
                       DTypeError);
  CHECK_THROWS_AS(layer_norm(x), DTypeError);
  const PrecisionGuard guard(Precision::bf16);
  CHECK_THROWS_WITH_AS(linear(x, to_bf16(weight)),
                       "[linear] wrong dtype: weight is bf16 (4, 3) on cpu, x bf16 (2, 3) on cpu; under a "
                       "PrecisionGuard expected f32, which a product rounds itself",
                       DTypeError);
  CHECK_THROWS_AS(linear(x, weight, bias.to(DType::f64)), DTypeError);
  CHECK_THROWS_AS(linear(x.to(DType::f64), weight), DTypeError);
  CHECK_THROWS_AS(linear(x.to(DType::f16), weight), DTypeError);
  CHECK_THROWS_WITH_AS(layer_norm(x, to_bf16(normal({3}, 4))),
                       "[layer_norm] wrong dtype: weight is bf16 (3) on cpu, x bf16 (2, 3) on cpu; under a "
                       "PrecisionGuard expected f32, which a product rounds itself",
                       DTypeError);
  CHECK_THROWS_AS(matmul(x, weight.to(DType::f64)), DTypeError);
  const Tensor stream = normal({2, 4}, 5), square = normal({3, 3}, 6), three = normal({3}, 7);
  CHECK_THROWS_AS(linear_residual(stream, x, {to_bf16(weight), bias}), DTypeError);
  CHECK_THROWS_AS(linear_residual(to_bf16(stream), x, {weight, bias}), DTypeError);
  CHECK_THROWS_AS(linear_residual(stream.to(DType::f64), x, {weight, bias}), DTypeError);
  CHECK_THROWS_AS(pre_norm_linear(x, {three, three}, {square, three}), DTypeError);  // the stream of tokens is f32
  CHECK_THROWS_AS(pre_norm_mlp(x, {three, three}, {square, three}, {square, three}), DTypeError);
  CHECK_THROWS_AS(gelu(x), DTypeError);  // no other op takes 16 bits
}

TEST_CASE("a backward without the guard of its forward gives the same gradients") {
  SKIP_WITHOUT_BF16_UNITS;
  const Tensor x = normal({20, 16}, 1, true), weight = normal({24, 16}, 2, true), g = to_bf16(normal({20, 24}, 3));
  const auto run = [&](bool guarded) {
    Tensor y;
    std::vector<Tensor> gradients;
    {
      const PrecisionGuard guard(Precision::bf16);
      y = linear_gelu(x, weight);
      if (guarded) gradients = grad(y, {x, weight}, g);
    }
    if (!guarded) gradients = grad(y, {x, weight}, g);
    return gradients;
  };
  const std::vector<Tensor> inside = run(true), outside = run(false);
  for (std::size_t i = 0; i < 2; ++i) CHECK(same_bits(inside[i], outside[i]));
}

TEST_CASE("a weight is rounded once for a version: a recorded write is seen, and so is any before the next guard") {
  SKIP_WITHOUT_BF16_UNITS;
  const NoGradGuard no_grad;
  const Tensor x = ones({1, 32});
  Tensor weight = full({16, 32}, 1);
  const auto result = [&] { return linear(x, weight).to(DType::f32).to_vector<float>()[0]; };
  {
    const PrecisionGuard guard(Precision::bf16);
    CHECK(result() == 32);
    weight.fill_(2);
    CHECK(result() == 64);
    std::fill_n(weight.data<float>(), weight.numel(), 3.0f);
    CHECK(result() == 64);  // the price of rounding once
    const Tensor view = slice(weight, 0, 0, 8);
    CHECK(linear(x, view).to(DType::f32).to_vector<float>()[0] == 96);  // another matrix
    CHECK(linear(x, transpose(full({32, 16}, 5), 0, 1)).to(DType::f32).to_vector<float>()[0] == 160);
  }
  const PrecisionGuard guard(Precision::bf16);
  CHECK(result() == 96);
}

TEST_CASE("rounded weights go with their weight, and with the guard") {
  SKIP_WITHOUT_BF16_UNITS;
  const NoGradGuard no_grad;
  const Tensor x = to_bf16(ones({1, 256}));
  const auto use = [&] { return linear(x, ones({256, 256})).to(DType::f32).to_vector<float>()[0]; };
  const std::size_t before = memory_stats().bytes_in_use;
  {
    const PrecisionGuard guard(Precision::bf16);
    use();
    const std::size_t one = memory_stats().bytes_in_use;
    CHECK(one > before);
    for (int i = 0; i < 5; ++i) use();  // a new weight each time
    CHECK(memory_stats().bytes_in_use == one);
  }
  CHECK(memory_stats().bytes_in_use == before);
}

TEST_CASE("mixed precision: the same bits for 1, 2, 3 and 16 threads") {
  SKIP_WITHOUT_BF16_UNITS;
  const Tensor x = normal({700, 64}, 1, true), weight = normal({128, 64}, 2, true), bias = normal({128}, 3, true),
               back = normal({64, 128}, 4, true), gain = normal({64}, 5, true), shift = normal({64}, 6, true);
  const Tensor g = normal({700, 64}, 7);
  const auto run = [&](int threads) {
    const NumThreadsGuard threads_guard(threads);
    const PrecisionGuard guard(Precision::bf16);
    const Tensor y = residual_add(x, linear(linear_gelu(layer_norm(x, gain, shift), weight, bias), back));
    std::vector<Tensor> all = grad(y, {x, weight, bias, back, gain, shift}, g);
    all.push_back(y.detach());
    return all;
  };
  const std::vector<Tensor> one = run(1);
  for (const int threads : {2, 3, 16}) {
    const std::vector<Tensor> other = run(threads);
    for (std::size_t i = 0; i < one.size(); ++i) {
      CAPTURE(threads);
      CAPTURE(i);
      CHECK(same_bits(one[i], other[i]));
    }
  }
}

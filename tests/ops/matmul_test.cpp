// What the op table does not reach: error texts, views without copies, the fused layer against its parts, large shapes.
#include "ops/matmul.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/memory.h"
#include "engine/parallel.h"
#include "ops/binary.h"
#include "ops/unary.h"
#include "ops/view.h"

using namespace polygrad;

namespace {

Tensor normal(const Shape& shape, std::uint64_t seed, bool requires_grad = false, DType dtype = DType::f32) {
  Generator generator(seed);
  return randn(shape, {.dtype = dtype, .requires_grad = requires_grad, .generator = &generator});
}

double largest_difference(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to(DType::f64).to_vector<double>(), y = b.to(DType::f64).to_vector<double>();
  REQUIRE(x.size() == y.size());
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::abs(x[i] - y[i]));
  return worst;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const std::vector<float> x = a.to_vector<float>(), y = b.to_vector<float>();
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

// The bytes that the allocator handed out while f ran, at their highest.
template <class F>
std::size_t peak_bytes(const F& f) {
  reset_peak_memory();
  const std::size_t before = memory_stats().bytes_in_use;
  const Tensor kept = f();
  return memory_stats().peak_bytes_in_use - before;
}

}  // namespace

TEST_CASE("errors of matmul name both shapes") {
  CHECK_THROWS_WITH_AS(matmul(zeros({2, 3}), zeros({4, 5})),
                       "[matmul] the inner sizes differ: (2, 3) and (4, 5); expected (..., m, k) and (..., k, n), with "
                       "leading sizes that are equal or 1",
                       ShapeError);
  CHECK_THROWS_WITH_AS(
      matmul(zeros({3}), zeros({3, 5})),
      "[matmul] a factor has fewer than two dimensions: (3) and (3, 5); expected (..., m, k) and (..., "
      "k, n), with leading sizes that are equal or 1",
      ShapeError);
  CHECK_THROWS_WITH_AS(matmul(zeros({2, 2, 3}), zeros({4, 3, 5})),
                       "[matmul] the leading sizes do not broadcast: (2, 2, 3) and (4, 3, 5); expected (..., m, k) and "
                       "(..., k, n), with leading sizes that are equal or 1",
                       ShapeError);
  CHECK_THROWS_WITH_AS(
      matmul(zeros({2, 3}), zeros({3, 5}, {.dtype = DType::f64})),
      "[matmul] dtypes differ: f32 (2, 3) on cpu and f64 (3, 5) on cpu; nothing is promoted, convert one with to()",
      DTypeError);
  CHECK_THROWS_WITH_AS(matmul(zeros({2, 3}, {.dtype = DType::i64}), zeros({3, 5}, {.dtype = DType::i64})),
                       "[matmul] wrong dtype: expected f32 or f64, got i64 (2, 3) on cpu; convert it with to()",
                       DTypeError);
}

TEST_CASE("errors of linear name the shapes that do not fit") {
  CHECK_THROWS_WITH_AS(
      linear(zeros({2, 3}), zeros({4, 5})),
      "[linear] the last size of x is not the weight's second: x (2, 3), weight (4, 5); expected x (..., 5); "
      "weight is (out, in)",
      ShapeError);
  CHECK_THROWS_WITH_AS(linear_gelu(zeros({2, 3}), zeros({4, 3}), zeros({3})),
                       "[linear_gelu] bias does not fit the weight: bias (3), weight (4, 3); expected bias (4)",
                       ShapeError);
  CHECK_THROWS_WITH_AS(linear(zeros({2, 3}), zeros({3})),
                       "[linear] weight must be a matrix: x (2, 3), weight (3); expected (out, in)", ShapeError);
}

TEST_CASE("transposed views, row slices and batches are multiplied in place") {
  const std::size_t result = 256 * 256 * sizeof(float);
  const Tensor a = normal({256, 256}, 1), b = normal({256, 256}, 2);
  const Tensor turned = transpose(a, 0, 1), wide = normal({256, 512}, 3);
  const std::size_t most = result + 4096;  // the result, and small change: no copy of a factor
  CHECK(peak_bytes([&] { return matmul(turned, b); }) <= most);
  CHECK(peak_bytes([&] { return matmul(a, transpose(b, 0, 1)); }) <= most);
  CHECK(peak_bytes([&] { return matmul(slice(wide, 1, 256, 512), b); }) <= most);
  CHECK(peak_bytes([&] { return linear(turned, b); }) <= most);
  // Every second column is no matrix by rows or columns: one copy.
  CHECK(peak_bytes([&] { return matmul(slice(wide, 1, 0, 512, 2), b); }) > most);
  CHECK(largest_difference(matmul(turned, b), matmul(turned.contiguous(), b)) < 1e-4);
  CHECK(largest_difference(matmul(slice(wide, 1, 0, 512, 2), b), matmul(slice(wide, 1, 0, 512, 2).contiguous(), b)) ==
        0);
}

TEST_CASE("linear_gelu equals gelu of linear, value and gradients") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    CAPTURE(to_string(dtype));
    for (const std::int64_t rows : {1, 7, 300, 600}) {
      CAPTURE(rows);
      const Tensor g = normal({rows, 50}, 4, false, dtype);
      std::vector<Tensor> results[2];
      for (const bool fused : {false, true}) {
        const Tensor x = normal({rows, 33}, 1, true, dtype), weight = normal({50, 33}, 2, true, dtype);
        const Tensor bias = normal({50}, 3, true, dtype);
        const Tensor y = fused ? linear_gelu(x, weight, bias) : gelu(linear(x, weight, bias));
        y.backward(g);
        results[fused] = {y.detach(), x.grad(), weight.grad(), bias.grad()};
      }
      for (std::size_t i = 0; i < results[0].size(); ++i) {
        CAPTURE(i);
        // The same products and the same functor: only the order of the bias gradient's sum may differ.
        CHECK(largest_difference(results[0][i], results[1][i]) <= (dtype == DType::f32 ? 2e-4 : 1e-12));
      }
      CHECK(largest_difference(results[0][0], results[1][0]) == 0);
    }
  }
}

TEST_CASE("linear and its gradients have the same bits for 1, 2, 3 and 16 threads, recorded or not") {
  const auto run = [](int threads) {
    const NumThreadsGuard guard(threads);
    const Tensor x = normal({3, 700, 96}, 1, true), weight = normal({200, 96}, 2, true), bias = normal({200}, 3, true);
    const Tensor y = linear_gelu(linear(x, weight, bias), normal({40, 200}, 5), normal({40}, 6));
    y.backward(normal(y.shape(), 7));
    return std::vector<Tensor>{y.detach(), x.grad(), weight.grad(), bias.grad()};
  };
  const std::vector<Tensor> one = run(1);
  for (const int threads : {2, 3, 16}) {
    CAPTURE(threads);
    const std::vector<Tensor> more = run(threads);
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(same_bits(one[i], more[i]));
  }
  const NoGradGuard no_grad;
  const Tensor x = normal({3, 700, 96}, 1), weight = normal({200, 96}, 2), bias = normal({200}, 3);
  CHECK(same_bits(linear_gelu(linear(x, weight, bias), normal({40, 200}, 5), normal({40}, 6)), one[0]));
}

TEST_CASE("a gradient that nobody needs is not computed") {
  const Tensor x = normal({300, 300}, 1), weight = normal({300, 300}, 2, true);
  const Tensor y = linear(x, weight);
  CHECK_FALSE(x.requires_grad());
  y.backward(ones_like(y));
  CHECK_FALSE(x.grad().defined());
  CHECK(weight.grad().shape() == weight.shape());
}

TEST_CASE("a factor that no gradient reads is neither kept alive nor watched") {
  using Map = Tensor (*)(const Tensor&, const Tensor&);
  const Map maps[] = {matmul, [](const Tensor& x, const Tensor& w) { return linear(x, w); },
                      [](const Tensor& x, const Tensor& w) { return linear_gelu(x, w, zeros({64})); }};
  for (const Map map : maps) {
    for (const bool frozen_weight : {true, false}) {
      CAPTURE(frozen_weight);
      Tensor x = normal({64, 64}, 1, frozen_weight), weight = normal({64, 64}, 2, !frozen_weight);
      const Tensor y = map(x, weight);
      // The one that requires a gradient is read by none: it may be written, and goes when its last handle does.
      Tensor unread = (frozen_weight ? x : weight).detach();
      CHECK_NOTHROW(unread.fill_(0));
      CHECK_NOTHROW(y.backward(ones_like(y)));
      CHECK((frozen_weight ? x : weight).grad().defined());

      Tensor input = normal({64, 64}, 1, frozen_weight);
      Tensor other = normal({64, 64}, 2, !frozen_weight);
      Tensor& graph_end = frozen_weight ? input : other;
      graph_end = mul(graph_end, 2.0);  // no leaf: nothing but the rule could hold its elements
      const Tensor z = map(input, other);
      const std::size_t before = memory_stats().bytes_in_use;
      graph_end = Tensor();
      CHECK(before - memory_stats().bytes_in_use >= 64 * 64 * sizeof(float));
    }
  }
  // What is read is watched still.
  Tensor x = normal({4, 4}, 1), weight = normal({4, 4}, 2, true);
  const Tensor y = linear(x, weight);
  x.fill_(0);
  CHECK_THROWS_AS(y.backward(ones_like(y)), GradError);
}

TEST_CASE("one matrix for a whole batch: its gradient is the sum over the batch") {
  const Tensor a = normal({40, 30, 20}, 1, true, DType::f64), b = normal({20, 10}, 2, true, DType::f64);
  const Tensor y = matmul(a, b);
  const Tensor g = normal(y.shape(), 3, false, DType::f64);
  y.backward(g);
  Tensor sum = zeros({20, 10}, {.dtype = DType::f64});
  for (std::int64_t i = 0; i < 40; ++i) {
    const NoGradGuard no_grad;
    sum = add(sum, matmul(transpose(select(a, 0, i), 0, 1), select(g, 0, i)));
  }
  CHECK(largest_difference(b.grad(), sum) < 1e-11);
  CHECK(a.grad().shape() == a.shape());
}

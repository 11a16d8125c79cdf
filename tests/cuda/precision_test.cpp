// Mixed precision on a GPU, beside the op table: what takes a product's 16-bit result, and when a weight is rounded.
#include "ops/precision.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "ops/dropout.h"
#include "ops/matmul.h"
#include "tests/cuda/gpu.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

Tensor normal(const Shape& shape, std::uint64_t seed) {
  Generator generator(seed);
  return randn(shape, {.generator = &generator});
}

std::vector<double> values(const Tensor& x) {
  return x.detach().to(Device::cpu()).to(DType::f64).contiguous().to_vector<double>();
}

// The largest difference, in units of b's largest value.
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

}  // namespace

TEST_CASE("residual_add and dropout take what products gave") {
  POLYGRAD_NEEDS_GPU();
  const Tensor x = normal({4, 6}, 1).to(gpu()), branch = normal({4, 6}, 2).to(gpu());
  for (const DType dtype : {DType::bf16, DType::f16}) {
    CHECK(residual_add(x, branch.to(dtype)).dtype() == DType::f32);
    Generator one(3), other(3);
    const Tensor wide = dropout(branch, 0.5, one), narrow = dropout(branch.to(dtype), 0.5, other);
    CHECK(narrow.dtype() == dtype);
    CHECK(distance(narrow, wide) < 1e-2);  // the same elements are kept
  }
  Generator generator(3);
  CHECK_THROWS_AS(dropout(normal({4}, 1).to(DType::f16), 0.5, generator), DTypeError);  // not on the CPU
}

TEST_CASE("a weight is rounded once for a version, and anew for another dtype") {
  POLYGRAD_NEEDS_GPU();
  const NoGradGuard no_grad;
  const Tensor x = ones({1, 32}, {.device = gpu()});
  Tensor weight = full({16, 32}, 1, {.device = gpu()});
  const auto result = [&] { return linear(x, weight).to(DType::f32).to(Device::cpu()).to_vector<float>()[0]; };
  const PrecisionGuard outer(Precision::bf16, gpu());
  CHECK(result() == 32);
  weight.fill_(2);
  CHECK(result() == 64);
  weight.fill_(1 + 0x1p-9);  // f16 has it, bf16 has not
  CHECK(result() == 32);
  const PrecisionGuard inner(Precision::f16, gpu());
  CHECK(result() == 32 + 0x1p-4);
}

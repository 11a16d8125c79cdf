// What masks, padding and dropout must do, whatever the activation: hidden is hidden, and the mask of dropout is one.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "engine/factory.h"
#include "ops/attention.h"
#include "tests/ops/attention_support.h"

using namespace polygrad;
using namespace polygrad::testing;
using reference::Array;

namespace {

constexpr AttentionPath kExact[] = {AttentionPath::tiled, AttentionPath::materialised};

// Elements [b, b + count) of the first dimension.
Array batches(const Array& a, std::int64_t b, std::int64_t count) {
  std::vector<std::int64_t> shape = a.shape;
  const auto stride = static_cast<std::ptrdiff_t>(a.data.size()) / shape[0];
  shape[0] = count;
  Array part(shape);
  std::copy_n(a.data.begin() + b * stride, part.data.size(), part.data.begin());
  return part;
}

// The first n of dimension `dim`; and its inverse, which fills up with noise.
Array cut(const Array& a, std::size_t dim, std::int64_t n) {
  std::int64_t outer = 1, inner = 1;
  for (std::size_t i = 0; i < dim; ++i) outer *= a.shape[i];
  for (std::size_t i = dim + 1; i < a.shape.size(); ++i) inner *= a.shape[i];
  std::vector<std::int64_t> shape = a.shape;
  shape[dim] = n;
  Array part(shape);
  for (std::int64_t o = 0; o < outer; ++o) {
    std::copy_n(a.data.begin() + o * a.shape[dim] * inner, n * inner, part.data.begin() + o * n * inner);
  }
  return part;
}
Array padded(const Array& a, std::size_t dim, std::int64_t n) {
  std::int64_t outer = 1, inner = 1;
  for (std::size_t i = 0; i < dim; ++i) outer *= a.shape[i];
  for (std::size_t i = dim + 1; i < a.shape.size(); ++i) inner *= a.shape[i];
  std::vector<std::int64_t> shape = a.shape;
  shape[dim] = n;
  Array whole = random_array(shape, 99, 3);
  for (std::int64_t o = 0; o < outer; ++o) {
    std::copy_n(a.data.begin() + o * a.shape[dim] * inner, a.shape[dim] * inner, whole.data.begin() + o * n * inner);
  }
  return whole;
}

bool all_zero(const Array& a) {
  return std::all_of(a.data.begin(), a.data.end(), [](double x) { return x == 0; });
}
bool all_finite_numbers(const AttentionResult& result) {
  for (const Array* a : {&result.out, &result.dq, &result.dk, &result.dv, &result.dbias}) {
    for (const double x : a->data) {
      if (!std::isfinite(x)) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("the corner window of a shifted map allows 625 of its 2401 pairs") {
  const Tensor q = full({1, 1, 49, 1}, 1.0), k = full({1, 1, 49, 1}, 1.0);
  AttentionParams params;
  params.phi = Activation::power(1);
  AttentionMasks masks;
  masks.regions = tensor_of(corner_window(), DType::i32);
  const std::vector<float> map = attention_map(q, k, params, masks).to_vector<float>();
  CHECK(std::count(map.begin(), map.end(), 1.0f) == 625);
  CHECK(std::count(map.begin(), map.end(), 0.0f) == 2401 - 625);
  // All pairs of it have equal ids, and softmax is uniform over a token's own region: 16, 12, 12 or 9 tokens.
  params.phi = Activation::softmax();
  const std::vector<float> rows = attention_map(q, k, params, masks).to_vector<float>();
  CHECK(rows[0] == doctest::Approx(1.0 / 16));
  CHECK(rows[48 * 49 + 48] == doctest::Approx(1.0 / 9));
}

TEST_CASE("a fully hidden row gives exactly 0, finite gradients, and changes nobody else") {
  for (const Activation phi : all_activations()) {
    for (const AttentionPath path : {AttentionPath::tiled, AttentionPath::materialised, AttentionPath::linear}) {
      if (path == AttentionPath::linear && !(phi == Activation::power(1))) continue;
      AttentionCase test = random_case(3, 2, 19, 19, 8, 11);
      test.spec.phi = to_string(phi);
      test.spec.divisor = 4;
      test.spec.key_mask = prefix_mask({19, 0, 7}, 19);  // the middle sample has no visible key at all
      test.spec.query_mask = prefix_mask({19, 19, 19}, 19);
      test.spec.query_mask.data[5] = 0;  // and one row of the first sample is nobody's
      if (path != AttentionPath::linear) test.spec.bias = random_array({1, 2, 19, 19}, 12);
      CAPTURE(test.spec.phi);
      CAPTURE(to_string(path));
      const AttentionResult result = run_attention(test, DType::f32, path);
      CHECK(all_finite_numbers(result));
      CHECK(all_zero(batches(result.out, 1, 1)));
      CHECK(all_zero(batches(result.dq, 1, 1)));
      CHECK(all_zero(batches(result.dk, 1, 1)));
      CHECK(all_zero(batches(result.dv, 1, 1)));
      for (std::size_t e = 0; e < 16; ++e) CHECK(result.out.data[5 * 16 + e] == 0);
      for (std::size_t e = 0; e < 8; ++e) CHECK(result.dq.data[5 * 8 + e] == 0);
      for (std::size_t j = 7; j < 19; ++j) CHECK(result.dk.data[(4 * 19 + j) * 8] == 0);  // hidden keys of sample 2
      CHECK(!all_zero(batches(result.dk, 2, 1)));
      // The batch without that sample.
      AttentionCase others = test;
      for (Array* a : {&others.q, &others.k, &others.v, &others.grad, &others.spec.key_mask, &others.spec.query_mask}) {
        Array kept = batches(*a, 0, 1);
        const Array last = batches(*a, 2, 1);
        kept.shape[0] = 2;
        kept.data.insert(kept.data.end(), last.data.begin(), last.data.end());
        *a = kept;
      }
      const AttentionResult expected = run_attention(others, DType::f32, path);
      CHECK(distance(batches(result.out, 2, 1), batches(expected.out, 1, 1)) <= 1e-6);
      CHECK(distance(batches(result.dk, 0, 1), batches(expected.dk, 0, 1)) <= 1e-6);
      if (path != AttentionPath::linear) CHECK(distance(result.dbias, expected.dbias) <= 1e-6);
    }
  }
}

TEST_CASE("scores that overflow behind a mask do no harm") {
  // The hidden key's score is 1e30 / sqrt(4): its cube, exp and bias are infinite in f32.
  for (const Activation phi : all_activations()) {
    if (phi == Activation::power(1)) continue;
    AttentionCase test = random_case(1, 1, 5, 6, 4, 21);
    test.spec.phi = to_string(phi);
    test.spec.key_mask = prefix_mask({5}, 6);
    test.spec.key_mask.data[2] = 0;
    for (const std::size_t hidden : {2, 5}) {
      for (std::size_t e = 0; e < 4; ++e) test.k.data[hidden * 4 + e] = e % 2 == 0 ? 1e30 : -1e30;
    }
    AttentionCase modest = test;
    for (const std::size_t hidden : {2, 5}) {
      for (std::size_t e = 0; e < 4; ++e) modest.k.data[hidden * 4 + e] = 0;
    }
    for (const AttentionPath path : kExact) {
      CAPTURE(test.spec.phi);
      CAPTURE(to_string(path));
      CHECK(distance(run_attention(test, DType::f32, path), run_attention(modest, DType::f32, path)) == 0);
    }
  }
}

TEST_CASE("a bias of -infinity is the limit of large negative ones, where that is finite") {
  for (const char* name : {"softmax", "relu", "elu", "gelu", "tanh", "exp"}) {
    for (const AttentionPath path : kExact) {
      for (const DType dtype : {DType::f32, DType::f64}) {
        CAPTURE(name);
        CAPTURE(to_string(path));
        CAPTURE(to_string(dtype));
        AttentionCase test = random_case(1, 2, 9, 9, 4, 6);
        test.spec.phi = name;
        test.spec.bias = random_array({1, 2, 9, 9}, 7);
        AttentionCase limit = test;
        for (std::size_t i = 0; i < test.spec.bias.data.size(); i += 5) {
          test.spec.bias.data[i] = -std::numeric_limits<double>::infinity();
          limit.spec.bias.data[i] = -1e4;
        }
        CHECK(distance(run_attention(test, dtype, path), run_attention(limit, dtype, path)) == 0);
      }
    }
  }
}

TEST_CASE("NaN in a query reaches its row of the result and its gradient, whatever the activation") {
  for (const Activation phi : all_activations()) {
    for (const AttentionPath path : kExact) {
      CAPTURE(to_string(phi));
      CAPTURE(to_string(path));
      AttentionCase test = random_case(1, 1, 9, 9, 4, 6);
      test.spec.phi = to_string(phi);
      test.q.data[4 * 4 + 1] = std::numeric_limits<double>::quiet_NaN();
      const AttentionResult got = run_attention(test, DType::f32, path);
      for (std::size_t i = 0; i < got.out.data.size(); ++i) {
        CHECK(std::isnan(got.out.data[i]) == (i / 4 == 4));
        if (i / 4 == 4 && phi.power() != 1) CHECK(std::isnan(got.dq.data[i]));  // φ' = 1 reads no score
      }
    }
  }
}

TEST_CASE("padding to 128 or 1024 changes no output and no gradient") {
  for (const Activation phi : all_activations()) {
    for (const double dropout : {0.0, 0.1}) {
      AttentionCase test = random_case(1, 2, 100, 100, 32, 31);
      test.spec.phi = to_string(phi);
      test.spec.divisor = 10;
      test.spec.dropout = dropout;
      const AttentionResult expected = run_attention(test, DType::f32, AttentionPath::automatic);
      for (const std::int64_t n : {128, 1024}) {
        AttentionCase longer = test;
        for (Array* a : {&longer.q, &longer.k, &longer.v}) *a = padded(*a, 2, n);
        longer.grad = padded(longer.grad, 1, n);
        longer.spec.key_mask = prefix_mask({100}, n);
        longer.spec.query_mask = longer.spec.key_mask;
        AttentionResult result = run_attention(longer, DType::f32, AttentionPath::automatic);
        // Rows nobody reads come out 0.
        const std::size_t half = result.out.data.size() * 100 / static_cast<std::size_t>(n);
        CHECK(std::all_of(result.out.data.begin() + static_cast<std::ptrdiff_t>(half), result.out.data.end(),
                          [](double x) { return x == 0; }));
        result.out = cut(result.out, 1, 100);
        for (Array* a : {&result.dq, &result.dk, &result.dv}) *a = cut(*a, 2, 100);
        CAPTURE(test.spec.phi);
        CAPTURE(dropout);
        CAPTURE(n);
        CHECK(distance(result, expected) <= 1e-5);
      }
    }
  }
}

TEST_CASE("dropout draws the same mask in every path, block and micro-batch") {
  // With v = 1 the result is P∘Z itself.
  const std::int64_t n = 70;
  AttentionCase test = random_case(4, 2, n, n, n, 41);
  std::fill(test.v.data.begin(), test.v.data.end(), 0.0);
  for (std::size_t head = 0; head < 8; ++head) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      test.v.data[(head * static_cast<std::size_t>(n) + i) * static_cast<std::size_t>(n) + i] = 1;
    }
  }
  test.spec.phi = "exp";  // never 0
  test.spec.dropout = 0.3;
  test.spec.seed = 0x123456789ABCDEFu;
  test.spec.offset = 17;
  test.spec.first_sample = 2;
  const AttentionResult tiled = run_attention(test, DType::f32, AttentionPath::tiled);
  const AttentionResult materialised = run_attention(test, DType::f64, AttentionPath::materialised);
  const AttentionResult packed = run_attention(test, DType::f32, AttentionPath::tiled, Packing::packed);
  AttentionCase second = test;
  for (Array* a : {&second.q, &second.k, &second.v, &second.grad}) *a = batches(*a, 2, 2);
  second.spec.first_sample = 4;
  const AttentionResult micro = run_attention(second, DType::f32, AttentionPath::tiled);
  std::int64_t kept = 0, wrong = 0;
  for (std::int64_t b = 0; b < 4; ++b)
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t h = 0; h < 2; ++h)
        for (std::int64_t j = 0; j < n; ++j) {
          const auto at = static_cast<std::size_t>(((b * n + i) * 2 + h) * n + j);
          const bool expected = reference::attention_dropout_factor(test.spec, 2, b, h, i, j) != 0;
          kept += expected;
          for (const AttentionResult* result : {&tiled, &materialised, &packed}) {
            wrong += (result->out.data[at] != 0) != expected;
          }
          if (b >= 2) wrong += (micro.out.data[at - static_cast<std::size_t>(2 * n * 2 * n)] != 0) != expected;
        }
  CHECK(wrong == 0);
  // 39200 draws at p = 0.3: five standard deviations are 454.
  CHECK(std::abs(static_cast<double>(kept) - 0.7 * 39200) < 454);
  // The gradient uses the mask of the forward: φ = x, where dv = (Z∘S)ᵀ dO is linear in everything.
  test.spec.phi = "x";
  const AttentionResult expected = run_twin(test);
  for (const AttentionPath path : {AttentionPath::automatic, AttentionPath::tiled, AttentionPath::materialised}) {
    CHECK(distance(run_attention(test, DType::f64, path), expected) <= 1e-9);
  }
}

TEST_CASE("each call takes one stream of the generator, and only with dropout") {
  const Tensor q = full({1, 1, 8, 4}, 1.0);
  Generator generator(3);
  AttentionParams params;
  params.generator = &generator;
  attention(q, q, q, params);
  CHECK(generator.offset() == 0);
  params.dropout = 0.5;
  const std::vector<float> first = attention(q, q, q, params).to_vector<float>();
  CHECK(generator.offset() == 1);
  const std::vector<float> second = attention(q, q, q, params).to_vector<float>();
  CHECK(generator.offset() == 2);
  CHECK(first != second);
  generator = Generator(3);
  CHECK(attention(q, q, q, params).to_vector<float>() == first);
}

TEST_CASE("hidden tokens, wherever they stand, are not read: a NaN in them changes no bit, and their gradients are 0") {
  for (const Activation phi : all_activations()) {
    for (const AttentionPath path : {AttentionPath::tiled, AttentionPath::linear}) {
      if (path == AttentionPath::linear && phi.power() != 1) continue;
      CAPTURE(to_string(phi));
      CAPTURE(to_string(path));
      // 600 keys are several tiles. One is hidden as a whole in the middle, one entry has holes, one sees nothing.
      AttentionCase test = random_case(3, 2, 600, 600, 32, 77);
      test.spec.phi = to_string(phi);
      test.spec.divisor = 24;
      test.spec.key_mask = random_mask(3, 600, 5);
      test.spec.query_mask = random_mask(3, 600, 6);
      for (std::size_t j = 192; j < 480; ++j) test.spec.key_mask.data[j] = 0;
      for (std::size_t j = 0; j < 600; ++j) test.spec.key_mask.data[1200 + j] = 0;
      const AttentionResult expected = run_attention(test, DType::f32, path);
      AttentionCase poisoned = test;
      const double nan = std::numeric_limits<double>::quiet_NaN();
      for (std::size_t b = 0; b < 3; ++b) {
        for (std::size_t token = 0; token < 600; ++token) {
          for (std::size_t h = 0; h < 2; ++h) {
            const auto row = static_cast<std::ptrdiff_t>(((b * 2 + h) * 600 + token) * 32);
            if (test.spec.key_mask.data[b * 600 + token] == 0) {
              std::fill_n(poisoned.k.data.begin() + row, 32, nan);
              std::fill_n(poisoned.v.data.begin() + row, 32, nan);
              CHECK(std::all_of(expected.dk.data.begin() + row, expected.dk.data.begin() + row + 32,
                                [](double x) { return x == 0; }));
              CHECK(std::all_of(expected.dv.data.begin() + row, expected.dv.data.begin() + row + 32,
                                [](double x) { return x == 0; }));
            }
            if (test.spec.query_mask.data[b * 600 + token] == 0) {
              std::fill_n(poisoned.q.data.begin() + row, 32, nan);
              CHECK(std::all_of(expected.dq.data.begin() + row, expected.dq.data.begin() + row + 32,
                                [](double x) { return x == 0; }));
            }
          }
        }
      }
      const AttentionResult result = run_attention(poisoned, DType::f32, path);
      CHECK(result.out.data == expected.out.data);
      CHECK(result.dq.data == expected.dq.data);
      CHECK(result.dk.data == expected.dk.data);
      CHECK(result.dv.data == expected.dv.data);
      CHECK(all_finite_numbers(result));
    }
  }
}

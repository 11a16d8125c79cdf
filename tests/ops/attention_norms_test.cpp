// The probes: Frobenius norms of P and its Jacobians, against dense finite differences, bounds and closed expectations.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/autograd.h"
#include "engine/factory.h"
#include "engine/parallel.h"
#include "ops/attention.h"
#include "tests/ops/attention_support.h"

using namespace polygrad;
using namespace polygrad::testing;
using reference::Array;

namespace {

// x (N, D) times w (D, d) plus b, as one head (1, 1, N, d).
Array project(const Array& x, const Array& w, const Array& b) {
  const auto n = static_cast<std::size_t>(x.shape[0]), width = static_cast<std::size_t>(x.shape[1]),
             d = static_cast<std::size_t>(w.shape[1]);
  Array y({1, 1, x.shape[0], w.shape[1]});
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t e = 0; e < d; ++e) y.data[i * d + e] = b.data.empty() ? 0 : b.data[e];
    for (std::size_t f = 0; f < width; ++f) {
      for (std::size_t e = 0; e < d; ++e) y.data[i * d + e] += x.data[i * width + f] * w.data[f * d + e];
    }
  }
  return y;
}

Tensor as_batch(const Array& x, DType dtype) {
  Array batch = x;
  batch.shape.insert(batch.shape.begin(), 1);
  return tensor_of(batch, dtype);
}

AttentionParams params_of(const reference::AttentionSpec& spec) {
  AttentionParams params;
  params.phi = parse_activation(spec.phi);
  params.divisor = spec.divisor;
  params.score_scale = spec.score_scale;
  return params;
}

struct Numbers {
  double a, j_s, j_q, j_k;
};
// The mean over batch and heads.
Numbers numbers_of(const AttentionNorms& norms) {
  const auto mean = [](const Tensor& t) {
    double sum = 0;
    for (const double value : t.to_vector<double>()) sum += value;
    return sum / static_cast<double>(t.numel());
  };
  return {mean(norms.a), mean(norms.j_s), mean(norms.j_q), mean(norms.j_k)};
}

}  // namespace

TEST_CASE("closed forms equal the norms of dense numerical Jacobians, for every activation and mask") {
  const Array x = random_array({5, 4}, 1), w_q = random_array({4, 3}, 2), w_k = random_array({4, 3}, 3);
  const Array b_q = random_array({3}, 4), b_k = random_array({3}, 5);
  const Array q = project(x, w_q, b_q), k = project(x, w_k, b_k);
  for (const Activation phi : all_activations()) {
    for (const std::string kind : {"plain", "bias", "key mask", "query mask", "regions", "all"}) {
      const bool all = kind == "all";
      reference::AttentionSpec spec;
      spec.phi = to_string(phi);
      spec.divisor = 1.7;
      if (all) spec.score_scale = 0.3;
      if (all || kind == "bias") spec.bias = random_array({1, 1, 5, 5}, 6);
      if (all || kind == "key mask") spec.key_mask = prefix_mask({4}, 5);
      if (all || kind == "query mask") {
        spec.query_mask = prefix_mask({5}, 5);
        spec.query_mask.data[1] = 0;
      }
      if (all || kind == "regions") spec.regions = prefix_mask({3}, 5);
      const reference::AttentionNorms expected = reference::attention_norms_by_differences(x, w_q, b_q, w_k, b_k, spec);
      const Numbers got =
          numbers_of(attention_norms(as_batch(x, DType::f64), tensor_of(q, DType::f64), tensor_of(k, DType::f64),
                                     params_of(spec), masks_of(spec, DType::f64)));
      CAPTURE(spec.phi);
      CAPTURE(kind);
      CHECK(std::abs(got.a / expected.a - 1) <= 1e-6);
      CHECK(std::abs(got.j_s / expected.j_s - 1) <= 1e-6);
      CHECK(std::abs(got.j_q / expected.j_q - 1) <= 1e-6);
      CHECK(std::abs(got.j_k / expected.j_k - 1) <= 1e-6);
    }
  }
}

TEST_CASE("x/16 at N = 257 has J_S = 16.0625 whatever the weights; N = 196, c = 14 has 14") {
  for (const double scale : {0.01, 1.0, 30.0}) {
    const Tensor x = tensor_of(random_array({2, 257, 48}, 1), DType::f32);
    const Tensor q = tensor_of(random_array({2, 3, 257, 16}, 2, scale), DType::f32);
    const Tensor k = tensor_of(random_array({2, 3, 257, 16}, 3, scale), DType::f32);
    AttentionParams params;
    params.phi = Activation::power(1);
    params.divisor = 16;
    for (const double value : attention_norms(x, q, k, params).j_s.to_vector<double>()) CHECK(value == 16.0625);
    // Also where the sum over all pairs is really made: regions that hide nothing.
    AttentionMasks masks;
    masks.regions = zeros({1, 257}, {.dtype = DType::i32});
    const AttentionNorms linear = attention_norms(x, q, k, params), general = attention_norms(x, q, k, params, masks);
    for (const double value : general.j_s.to_vector<double>()) CHECK(value == 16.0625);
    CHECK(distance(array_of(linear.a), array_of(general.a)) <= 1e-9);
    CHECK(distance(array_of(linear.j_q), array_of(general.j_q)) <= 1e-9);
    CHECK(distance(array_of(linear.j_k), array_of(general.j_k)) <= 1e-9);
  }
  AttentionParams params;
  params.phi = Activation::power(1);
  params.divisor = 14;
  const Tensor x = full({1, 196, 4}, 1.0), q = full({1, 1, 196, 2}, 0.5);
  CHECK(attention_norms(x, q, q, params).j_s.item<double>() == 14);
}

TEST_CASE("doubling c halves A, J_S, J_Q and J_K") {
  const Tensor x = tensor_of(random_array({1, 33, 12}, 1), DType::f32);
  const Tensor q = tensor_of(random_array({1, 2, 33, 6}, 2), DType::f32);
  const Tensor k = tensor_of(random_array({1, 2, 33, 6}, 3), DType::f32);
  for (const Activation phi : all_activations()) {
    if (phi.is_softmax()) continue;
    AttentionParams params;
    params.phi = phi;
    params.divisor = 3;
    const Numbers once = numbers_of(attention_norms(x, q, k, params));
    params.divisor = 6;
    const Numbers twice = numbers_of(attention_norms(x, q, k, params));
    CAPTURE(to_string(phi));
    CHECK(twice.a == doctest::Approx(once.a / 2).epsilon(1e-14));
    CHECK(twice.j_s == doctest::Approx(once.j_s / 2).epsilon(1e-14));
    CHECK(twice.j_q == doctest::Approx(once.j_q / 2).epsilon(1e-14));
    CHECK(twice.j_k == doctest::Approx(once.j_k / 2).epsilon(1e-14));
  }
}

TEST_CASE("Gaussian inputs give the norms that theory predicts at initialisation") {
  // x_i ~ N(0, 1), W ~ N(0, 0.02²), d = 64: sqrt of the exact second moments.
  struct Row {
    std::int64_t n, width;
    int p;
    double divisor, a, j_s, j_q;
  };
  const Row rows[] = {
      {257, 192, 1, 1, 19.738, 257, 986.9},         {257, 192, 1, 16, 1.23362, 16.0625, 61.6812},
      {257, 192, 2, 1, 2.69423, 39.476, 155.551},   {257, 192, 2, 16, 0.168389, 2.46725, 9.72195},
      {257, 192, 3, 1, 0.486906, 8.08268, 32.6626}, {257, 192, 3, 16, 0.0304316, 0.505167, 2.04142},
      {197, 384, 1, 1, 30.2596, 197, 1512.98},      {197, 384, 2, 14, 0.587006, 4.3228, 33.8908},
      {197, 384, 3, 14, 0.209997, 1.76102, 14.087}, {197, 768, 1, 14, 4.32277, 14.0714, 216.139},
      {197, 768, 2, 14, 2.34188, 8.64554, 135.208}, {197, 768, 3, 14, 1.66688, 7.02563, 111.818},
  };
  std::int64_t made = 0;
  Tensor x, q, k;
  for (const Row& row : rows) {
    if (made != row.width) {  // four draws of x, each with its own W_q and W_k: four samples of one head
      made = row.width;
      Array all_x({4, row.n, row.width}), all_q({4, 1, row.n, 64}), all_k({4, 1, row.n, 64});
      all_x.data.clear();
      all_q.data.clear();
      all_k.data.clear();
      for (std::uint64_t draw = 0; draw < 4; ++draw) {
        const Array one = random_array({row.n, row.width}, 10 * draw + 1);
        const Array one_q = project(one, random_array({row.width, 64}, 10 * draw + 2, 0.02), {});
        const Array one_k = project(one, random_array({row.width, 64}, 10 * draw + 3, 0.02), {});
        all_x.data.insert(all_x.data.end(), one.data.begin(), one.data.end());
        all_q.data.insert(all_q.data.end(), one_q.data.begin(), one_q.data.end());
        all_k.data.insert(all_k.data.end(), one_k.data.begin(), one_k.data.end());
      }
      x = tensor_of(all_x, DType::f32);
      q = tensor_of(all_q, DType::f32);
      k = tensor_of(all_k, DType::f32);
    }
    AttentionParams params;
    params.phi = Activation::power(row.p);
    params.divisor = row.divisor;
    const Numbers got = numbers_of(attention_norms(x, q, k, params));
    CAPTURE(row.width);
    CAPTURE(row.p);
    CAPTURE(row.divisor);
    CHECK(std::abs(got.a / row.a - 1) <= 0.1);
    CHECK(std::abs(got.j_s / row.j_s - 1) <= 0.1);
    CHECK(std::abs(got.j_q / row.j_q - 1) <= 0.1);
  }
}

TEST_CASE("bounds of softmax and tanh, on random and adversarial logits") {
  // q = rows of logits, k = 1: S = logits.
  const std::int64_t n = 24;
  Array unit({1, 1, n, n});
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) unit.data[i * static_cast<std::size_t>(n) + i] = 1;
  const Tensor k = tensor_of(unit, DType::f64), x = full({1, n, 2}, 1.0, {.dtype = DType::f64});
  AttentionParams params;
  params.score_scale = 1;
  const double root = std::sqrt(static_cast<double>(n));
  const auto norms = [&](const Array& logits) {
    return numbers_of(attention_norms(x, tensor_of(logits, DType::f64), k, params));
  };
  Array one_hot = unit, two_hot = unit, uniform({1, 1, n, n});
  for (double& value : one_hot.data) value *= 200;
  for (double& value : two_hot.data) value *= 200;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    two_hot.data[i * static_cast<std::size_t>(n) + (i + 1) % static_cast<std::size_t>(n)] = 200;
  }
  for (const Array& logits :
       {random_array({1, 1, n, n}, 1), random_array({1, 1, n, n}, 2, 50), one_hot, two_hot, uniform}) {
    params.phi = Activation::softmax();
    const Numbers got = norms(logits);
    CHECK(got.a >= 1 - 1e-6);
    CHECK(got.a <= root + 1e-6);
    CHECK(got.j_s <= root / 2 + 1e-6);
    params.phi = parse_activation("tanh");
    CHECK(norms(logits).a <= static_cast<double>(n));
  }
  params.phi = Activation::softmax();
  CHECK(norms(one_hot).a == doctest::Approx(root).epsilon(1e-6));
  CHECK(norms(one_hot).j_s <= 1e-6);
  CHECK(norms(two_hot).j_s == doctest::Approx(root / 2).epsilon(1e-6));
  CHECK(norms(uniform).a == doctest::Approx(1).epsilon(1e-6));
  CHECK(norms(uniform).j_s == doctest::Approx(std::sqrt(1 - 1.0 / static_cast<double>(n))).epsilon(1e-6));
}

TEST_CASE("the norms have the same bits for any number of threads, and need no contiguous inputs") {
  const Tensor x = tensor_of(random_array({1, 150, 12}, 1), DType::f32);
  const Array packed = random_array({1, 150, 2, 3, 8}, 2);
  const Tensor qk = tensor_of(packed, DType::f32);
  const Tensor q = make_view(qk, {1, 3, 150, 8}, {150 * 48, 8, 48, 1}, 0);
  const Tensor k = make_view(qk, {1, 3, 150, 8}, {150 * 48, 8, 48, 1}, 24);
  for (const char* phi : {"softmax", "x", "x3"}) {
    AttentionParams params;
    params.phi = parse_activation(phi);
    const auto all = [&](const Tensor& a, const Tensor& b) {
      const AttentionNorms norms = attention_norms(x, a, b, params);
      std::vector<double> values;
      for (const Tensor& t : {norms.a, norms.j_s, norms.j_q, norms.j_k}) {
        const std::vector<double> part = t.to_vector<double>();
        values.insert(values.end(), part.begin(), part.end());
      }
      return values;
    };
    const std::vector<double> expected = all(q.clone(), k.clone());
    for (const int threads : {1, 2, 3, 16}) {
      const NumThreadsGuard guard(threads);
      CHECK(all(q, k) == expected);
    }
  }
}

// Attention's value and gradient: by hand, and against the naive twin for every activation, mask and path.
#include "ops/attention.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/autograd.h"
#include "engine/factory.h"
#include "engine/memory.h"
#include "engine/parallel.h"
#include "ops/cpu/attention_plan.h"
#include "tests/ops/attention_support.h"

using namespace polygrad;
using namespace polygrad::testing;
using reference::Array;
using reference::AttentionSpec;

namespace {

constexpr AttentionPath kExact[] = {AttentionPath::tiled, AttentionPath::materialised};
constexpr double kF32 = 1e-5, kF64 = 1e-9;

// Every kind of mask the op takes, for a case of these sizes.
const char* const kKinds[] = {"plain", "bias", "key mask", "regions", "dropout"};

void add_kind(AttentionCase& test, const std::string& kind, std::uint64_t seed) {
  const std::int64_t batch = test.q.shape[0], heads = test.q.shape[1], queries = test.q.shape[2],
                     keys = test.k.shape[2];
  if (kind == "bias") test.spec.bias = random_array({1, heads, queries, keys}, seed + 77, 0.5);
  if (kind == "key mask") test.spec.key_mask = random_mask(batch, keys, seed);
  if (kind == "regions") {
    test.spec.regions = keys == 49 ? corner_window() : random_mask(1, keys, seed);
  }
  if (kind == "dropout") {
    test.spec.dropout = 0.2;
    test.spec.seed = seed * 0x9E3779B97F4A7C15u;
    test.spec.offset = 5;
    test.spec.first_sample = 3;
  }
}

// The divisor a model would use.
double divisor_of(Activation phi, std::int64_t keys) {
  return phi.power() > 0 ? std::sqrt(static_cast<double>(keys)) : 1;
}

std::string name_of(const AttentionCase& test, const std::string& kind) {
  return test.spec.phi + ", " + kind + ", Nq " + std::to_string(test.q.shape[2]) + ", Nk " +
         std::to_string(test.k.shape[2]) + ", d " + std::to_string(test.q.shape[3]);
}

}  // namespace

TEST_CASE("attention by hand, in each path and packed") {
  AttentionCase test;
  test.q = Array({1, 1, 2, 1});
  test.q.data = {1, 2};
  test.k = Array({1, 1, 2, 1});
  test.k.data = {1, -1};
  test.v = Array({1, 1, 2, 1});
  test.v.data = {3, 5};
  test.grad = Array({1, 2, 1}, 1);
  test.spec.divisor = 2;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Packing packing : {Packing::separate, Packing::packed}) {
      for (const AttentionPath path : {AttentionPath::automatic, AttentionPath::tiled, AttentionPath::materialised}) {
        test.spec.phi = "x3";
        const AttentionResult result = run_attention(test, dtype, path, packing);
        CHECK(result.out.data == std::vector<double>{-1, -8});
        CHECK(result.dv.data == std::vector<double>{4.5, -4.5});
        CHECK(result.dq.data == std::vector<double>{-3, -12});
        CHECK(result.dk.data == std::vector<double>{40.5, 67.5});
      }
      // φ = x: S = [1 -1; 2 -2], P = S/2, O = [-1, -2]; dv = column sums of P; dq_i = Σ_j v_j k_j / 2 = -1;
      // dk_j = v_j Σ_i q_i / 2.
      for (const AttentionPath path :
           {AttentionPath::automatic, AttentionPath::tiled, AttentionPath::linear, AttentionPath::materialised}) {
        test.spec.phi = "x";
        const AttentionResult result = run_attention(test, dtype, path, packing);
        CHECK(result.out.data == std::vector<double>{-1, -2});
        CHECK(result.dv.data == std::vector<double>{1.5, -1.5});
        CHECK(result.dq.data == std::vector<double>{-1, -1});
        CHECK(result.dk.data == std::vector<double>{4.5, 7.5});
      }
    }
  }
}

TEST_CASE("every activation with every mask agrees with the naive twin") {
  std::uint64_t seed = 1;
  for (const Activation phi : all_activations()) {
    for (const std::string kind : kKinds) {
      struct Sizes {
        std::int64_t batch, queries, keys, head_dim;
      };
      // Small shapes with every head width; the long row with one, taken in turns.
      const std::int64_t widths[] = {32, 48, 64};
      std::vector<Sizes> all = {{1, 257, 257, widths[seed % 3]}};
      for (const std::int64_t d : widths) {
        all.push_back({2, 1, 1, d});
        all.push_back({2, 16, 16, d});
        all.push_back({1, 49, 49, d});
        if (kind != "regions") all.push_back({2, 1, 49, d});
      }
      for (const Sizes& sizes : all) {
        AttentionCase test = random_case(sizes.batch, 2, sizes.queries, sizes.keys, sizes.head_dim, ++seed);
        test.spec.phi = to_string(phi);
        test.spec.divisor = divisor_of(phi, sizes.keys);
        add_kind(test, kind, seed);
        CAPTURE(name_of(test, kind));
        const AttentionResult expected = run_twin(test);
        CHECK(distance(run_attention(test, DType::f32, AttentionPath::tiled), expected) <= kF32);
        if (sizes.keys == 16 || sizes.head_dim == 48) {
          CHECK(distance(run_attention(test, DType::f64, AttentionPath::tiled), expected) <= kF64);
          CHECK(distance(run_attention(test, DType::f32, AttentionPath::materialised), expected) <= kF32);
        }
        if (phi == Activation::power(1) && (kind == "plain" || kind == "key mask")) {
          CHECK(distance(run_attention(test, DType::f32, AttentionPath::linear), expected) <= kF32);
          CHECK(distance(run_attention(test, DType::f64, AttentionPath::linear), expected) <= kF64);
        }
      }
    }
  }
}

TEST_CASE("everything at once agrees with the naive twin, separate and packed") {
  std::uint64_t seed = 900;
  for (const char* phi : {"softmax", "x", "x3", "elu", "exp_neg"}) {
    AttentionCase test = random_case(6, 2, 49, 49, 32, ++seed);
    test.spec.phi = phi;
    test.spec.divisor = 7;
    test.spec.score_scale = 0.11;
    add_kind(test, "dropout", seed);
    test.spec.bias = random_array({3, 2, 49, 49}, seed, 0.5);  // batch b uses bias b % 3 ...
    test.spec.regions = Array({2, 49});                        // ... and regions b % 2
    for (std::size_t i = 0; i < 49; ++i) {
      test.spec.regions.data[i] = corner_window().data[i];
      test.spec.regions.data[49 + i] = 9;
    }
    test.spec.key_mask = random_mask(6, 49, seed);
    test.spec.query_mask = random_mask(6, 49, seed + 1);
    const AttentionResult expected = run_twin(test);
    for (const AttentionPath path : kExact) {
      for (const Packing packing : {Packing::separate, Packing::packed}) {
        CAPTURE(phi);
        CAPTURE(to_string(path));
        CHECK(distance(run_attention(test, DType::f32, path, packing), expected) <= kF32);
        CHECK(distance(run_attention(test, DType::f64, path, packing), expected) <= kF64);
      }
    }
  }
}

TEST_CASE("rows longer than a tile, more queries than a panel, and Nq != Nk agree with the naive twin") {
  std::uint64_t seed = 800;
  for (const char* phi : {"softmax", "x3", "gelu"}) {
    AttentionCase test = random_case(1, 1, 300, 700, 32, ++seed);
    test.spec.phi = phi;
    test.spec.divisor = 26;
    add_kind(test, "dropout", seed);
    test.spec.key_mask = random_mask(1, 700, seed);
    for (std::size_t j = 0; j < 352; ++j) test.spec.key_mask.data[j] = 0;  // hides the first tile altogether
    test.spec.bias = random_array({1, 1, 300, 700}, seed, 0.5);
    CAPTURE(phi);
    const AttentionResult expected = run_twin(test);
    CHECK(distance(run_attention(test, DType::f32, AttentionPath::tiled), expected) <= kF32);
    test.spec.key_mask = {};
    CHECK(distance(run_attention(test, DType::f32, AttentionPath::tiled), run_twin(test)) <= kF32);
  }
}

TEST_CASE("the shapes of Swin, class attention and LRA") {
  // Swin: 2 images x 4 windows, one bias for all, regions by window, of which one is a corner.
  AttentionCase swin = random_case(8, 3, 49, 49, 32, 700);
  swin.spec.phi = "x3";
  swin.spec.divisor = 7;
  swin.spec.bias = random_array({1, 3, 49, 49}, 701, 0.5);
  swin.spec.regions = Array({4, 49});
  for (std::size_t i = 0; i < 49; ++i) {
    swin.spec.regions.data[49 + i] = i % 7 < 4 ? 0 : 1;
    swin.spec.regions.data[98 + i] = i / 7 < 4 ? 0 : 1;
    swin.spec.regions.data[147 + i] = corner_window().data[i];
  }
  // Class attention: one query over 197 keys, with a temperature-like scale.
  AttentionCase token = random_case(2, 4, 1, 197, 48, 710);
  token.spec.phi = "softmax";
  // LRA: lengths 130, 77, 1 and 0 padded to 130; padding is hidden on both sides.
  AttentionCase lra = random_case(4, 2, 130, 130, 32, 720);
  lra.spec.phi = "x2";
  lra.spec.divisor = 11;
  lra.spec.key_mask = prefix_mask({130, 77, 1, 0}, 130);
  lra.spec.query_mask = lra.spec.key_mask;
  for (const AttentionCase* test : {&swin, &token, &lra}) {
    for (const char* phi : {test->spec.phi.c_str(), "softmax", "tanh"}) {
      AttentionCase changed = *test;
      changed.spec.phi = phi;
      const AttentionResult expected = run_twin(changed);
      for (const AttentionPath path : kExact) {
        CAPTURE(name_of(changed, to_string(path)));
        CHECK(distance(run_attention(changed, DType::f32, path), expected) <= kF32);
      }
    }
  }
  lra.spec.phi = "x";
  CHECK(distance(run_attention(lra, DType::f32, AttentionPath::linear), run_twin(lra)) <= kF32);
  CHECK(distance(run_attention(lra, DType::f32, AttentionPath::automatic, Packing::packed), run_twin(lra)) <= kF32);
}

TEST_CASE("only the gradients that are wanted, from inputs of any layout") {
  AttentionCase test = random_case(2, 3, 9, 9, 8, 600);
  test.spec.phi = "x3";
  test.spec.bias = random_array({1, 3, 9, 9}, 601);
  const AttentionResult expected = run_twin(test);
  AttentionParams params;
  params.phi = Activation::power(3);
  const Tensor grad = tensor_of(test.grad, DType::f64);
  for (int wanted = 0; wanted < 4; ++wanted) {
    Tensor inputs[] = {tensor_of(test.q, DType::f64), tensor_of(test.k, DType::f64), tensor_of(test.v, DType::f64),
                       tensor_of(test.spec.bias, DType::f64)};
    inputs[wanted].set_requires_grad(true);
    // k as a view whose last dimension is strided, v with its heads interleaved.
    const Tensor wide = Tensor::empty({2, 3, 9, 16}, {.dtype = DType::f64});
    const Tensor strided = make_view(wide, {2, 3, 9, 8}, {3 * 9 * 16, 9 * 16, 16, 2}, 0);
    const Tensor joined = Tensor::empty({2, 9, 3, 8}, {.dtype = DType::f64});
    const Tensor interleaved = make_view(joined, {2, 3, 9, 8}, {9 * 24, 8, 24, 1}, 0);
    Tensor(strided).copy_(inputs[1].detach());
    Tensor(interleaved).copy_(inputs[2].detach());
    const Tensor out = attention(inputs[0], wanted == 1 ? inputs[1] : strided, wanted == 2 ? inputs[2] : interleaved,
                                 params, {.bias = inputs[3], .key_mask = {}, .query_mask = {}, .regions = {}});
    // An upstream gradient of stride 0 in one case of four.
    out.backward(grad);
    const Array* gradients[] = {&expected.dq, &expected.dk, &expected.dv, &expected.dbias};
    CAPTURE(wanted);
    CHECK(distance(array_of(out), expected.out) <= kF64);
    CHECK(distance(array_of(inputs[wanted].grad()), *gradients[wanted]) <= kF64);
  }
  // Expanded keys (one for all heads) and an expanded upstream gradient.
  Tensor q = tensor_of(test.q, DType::f64);
  q.set_requires_grad(true);
  const Tensor k = tensor_of(test.k, DType::f64), v = tensor_of(test.v, DType::f64);
  const Tensor shared = make_view(k, {2, 3, 9, 8}, {3 * 9 * 8, 0, 8, 1}, 0);
  const Tensor one = full({}, 2.0, {.dtype = DType::f64});
  attention(q, shared, v, params).backward(make_view(one, {2, 9, 24}, {0, 0, 0}, 0));
  AttentionCase expanded = test;
  expanded.spec.bias = {};
  expanded.k = array_of(shared);
  expanded.grad = Array({2, 9, 24}, 2);
  CHECK(distance(array_of(q.grad()), run_twin(expanded).dq) <= kF64);
}

TEST_CASE("the results have the same bits for 1, 2, 3 and 16 threads") {
  struct Sizes {
    std::int64_t batch, heads, queries, keys, head_dim, bias_groups;
  };
  // Many heads; few heads, whose panels are cut into groups; a bias shared by batches that are cut into chunks.
  for (const Sizes& sizes : {Sizes{8, 3, 65, 65, 32, 0}, Sizes{2, 1, 700, 700, 32, 0}, Sizes{9, 2, 49, 49, 16, 1}}) {
    for (const char* phi : {"softmax", "x", "x3"}) {
      AttentionCase test = random_case(sizes.batch, sizes.heads, sizes.queries, sizes.keys, sizes.head_dim, 500);
      test.spec.phi = phi;
      add_kind(test, "dropout", 1);
      if (std::string(phi) == "x" && sizes.bias_groups == 0) test.spec.dropout = 0;  // the linear path
      if (sizes.bias_groups > 0) {
        test.spec.bias = random_array({sizes.bias_groups, sizes.heads, sizes.queries, sizes.keys}, 501);
      }
      AttentionResult first;
      for (const int threads : {1, 2, 3, 16}) {
        const NumThreadsGuard guard(threads);
        const AttentionResult result = run_attention(test, DType::f32, AttentionPath::automatic);
        if (threads == 1) first = result;
        CAPTURE(phi);
        CAPTURE(threads);
        CHECK(result.out.data == first.out.data);
        CHECK(result.dq.data == first.dq.data);
        CHECK(result.dk.data == first.dk.data);
        CHECK(result.dv.data == first.dv.data);
        CHECK(result.dbias.data == first.dbias.data);
      }
    }
  }
}

TEST_CASE("no N x N buffer: memory of long sequences") {
  const auto peak = [](const Tensor& qkv, const AttentionParams& params) {
    trim_memory();
    const std::size_t before = memory_stats().bytes_in_use;
    reset_peak_memory();
    const Tensor out = attention_qkv(qkv, params);
    out.backward(ones(out.shape()));
    return static_cast<double>(memory_stats().peak_bytes_in_use - before) / (1 << 20);
  };
  Generator generator(1);
  AttentionParams params;
  params.phi = Activation::power(3);
  params.divisor = 64;
  Tensor qkv = randn({4, 4096, 3, 2, 32}, {.requires_grad = true, .generator = &generator});
  CHECK(peak(qkv, params) <= 64);
  params.phi = Activation::power(1);
  params.path = AttentionPath::linear;
  Tensor long_qkv = randn({1, 65536, 3, 2, 32}, {.requires_grad = true, .generator = &generator});
  CHECK(peak(long_qkv, params) <= 96);
}

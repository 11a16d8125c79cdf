// The GPU's kernels beyond the op table: shapes that take the other paths of a kernel (long rows, many slices, loops
// over a grid), updates in place, faults. 16-bit storage: narrow_test.cpp.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/generator.h"
#include "engine/testing.h"
#include "ops/attention.h"
#include "ops/binary.h"
#include "ops/dropout.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/optim_step.h"
#include "ops/patch.h"
#include "ops/reduce.h"
#include "ops/softmax.h"
#include "ops/unary.h"
#include "ops/view.h"
#include "tests/cuda/gpu.h"

using namespace polygrad;
using polygrad::testing::gpu;

namespace {

using Tensors = std::vector<Tensor>;

Tensor normal(const Shape& shape, std::uint64_t seed, DType dtype = DType::f32) {
  Generator generator(seed);
  return randn(shape, {.generator = &generator}).to(dtype);
}

// The largest difference, relative to the largest number.
double error_of(const Tensor& expected, const Tensor& got) {
  const std::vector<double> a = expected.to(DType::f64).to_vector<double>();
  const std::vector<double> b = got.to(Device::cpu()).to(DType::f64).to_vector<double>();
  REQUIRE(a.size() == b.size());
  double largest = 1e-30, worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(a[i])) largest = std::max(largest, std::abs(a[i]));
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double error = std::abs(a[i] - b[i]) / largest;
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
  }
  return worst;
}

// Value and gradients on both devices.
void check_op(const std::function<Tensor(const Tensors&)>& op, const Tensors& inputs, double tolerance = 2e-6) {
  const testing::UncachedGuard exact;
  const testing::PoisonGuard poison;
  Tensors leaves[2], results[2];
  for (const Device device : {Device::cpu(), gpu()}) {
    Tensors& own = leaves[device == gpu()];
    Tensors differentiable;
    for (const Tensor& input : inputs) {
      own.push_back(input.to(device).detach());
      const bool floating = input.dtype() == DType::f32 || input.dtype() == DType::f64;
      if (floating) differentiable.push_back(own.back().set_requires_grad(true));
    }
    const Tensor y = op(own);
    Tensors& result = results[device == gpu()];
    result.push_back(y.detach());
    if (!y.requires_grad()) continue;
    for (const Tensor& g : grad(y, differentiable, normal(y.shape(), 99, y.dtype()).to(device))) result.push_back(g);
  }
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    CAPTURE(i);
    CHECK(error_of(results[0][i], results[1][i]) <= tolerance);
  }
}

}  // namespace

TEST_CASE("layer norm: rows for warps, for blocks, and longer than registers; of any size") {
  POLYGRAD_NEEDS_GPU();
  for (const std::int64_t n : {1, 3, 192, 511, 512, 516, 1000, 4096, 4099, 9000}) {
    CAPTURE(n);
    const std::int64_t rows = n > 4000 ? 5 : 70;
    const auto op = [](const Tensors& t) { return layer_norm(t[0], t[1], t[2], 1e-6); };
    check_op(op, {normal({rows, n}, 1), normal({n}, 2), normal({n}, 3)}, 5e-6);
  }
  // Numbers whose squares a float doesn't hold, and rows far from 0.
  const auto plain = [](const Tensors& t) { return layer_norm(t[0], {}, {}, 0); };
  check_op(plain, {normal({9, 100}, 4) * 1e30}, 5e-6);
  check_op(plain, {normal({9, 100}, 4) * 1e-30}, 5e-6);
  check_op(plain, {normal({9, 2000}, 4) + 1000.0}, 1e-4);
}

TEST_CASE("softmax: long rows, and columns") {
  POLYGRAD_NEEDS_GPU();
  for (const Shape& shape : {Shape{40, 200}, Shape{9, 1001}, Shape{3, 5000}, Shape{2, 70, 50}}) {
    CAPTURE(to_string(shape));
    const int dim = shape.dim() == 3 ? 1 : -1;
    check_op([=](const Tensors& t) { return softmax(t[0], dim); }, {normal(shape, 1)}, 5e-6);
    check_op([=](const Tensors& t) { return log_softmax(t[0], dim); }, {normal(shape, 2) * 5.0}, 5e-6);
  }
}

TEST_CASE("sums: every combination of dimensions, in slices") {
  POLYGRAD_NEEDS_GPU();
  const Tensor x = normal({6, 50, 3, 70}, 1);
  for (int mask = 1; mask < 16; ++mask) {
    CAPTURE(mask);
    std::vector<int> dims;
    for (int i = 0; i < 4; ++i) {
      if (mask >> i & 1) dims.push_back(i);
    }
    check_op([&](const Tensors& t) { return sum(t[0], dims); }, {x});
  }
  check_op([](const Tensors& t) { return sum(t[0]); }, {normal({300000}, 2)});
  check_op([](const Tensors& t) { return mean(t[0], {0}); }, {normal({5000, 40}, 3)});
  check_op([](const Tensors& t) { return mean(t[0], {1}); }, {normal({3, 20000}, 4)});
}

TEST_CASE("amax, argmax, topk: ties and NaN as on the CPU") {
  POLYGRAD_NEEDS_GPU();
  std::vector<float> values(7 * 90);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 31) % 23);
  values[95] = values[130] = std::numeric_limits<float>::quiet_NaN();
  values[200] = -std::numeric_limits<float>::infinity();
  const Tensor x = Tensor::from_vector(values, {7, 90});
  for (int dim : {0, 1}) {
    CHECK(error_of(argmax(x, dim), argmax(x.to(gpu()), dim)) == 0);
    check_op([=](const Tensors& t) { return amax(t[0], dim); }, {x}, 0);
  }
  const auto cpu = topk(x, 9), there = topk(x.to(gpu()), 9);
  CHECK(error_of(cpu.first, there.first) == 0);
  CHECK(error_of(cpu.second, there.second) == 0);
}

TEST_CASE("index gradients: frequent ids, rare ids, many chunks; the same bits each time") {
  POLYGRAD_NEEDS_GPU();
  struct Case {
    std::int64_t ids, size, inner;
  };
  for (const Case& c : {Case{3000, 17, 40}, Case{50, 4000, 8}, Case{700, 700, 3}, Case{2100, 1, 5}}) {
    CAPTURE(c.size);
    Generator generator(5);
    std::vector<std::int64_t> ids(static_cast<std::size_t>(c.ids));
    for (std::int64_t& id : ids) id = generator.integer(0, c.size);
    const Tensor index = Tensor::from_vector(ids);
    const auto op = [](const Tensors& t) { return embedding(t[0], t[1], 0); };
    check_op(op, {normal({c.size, c.inner}, 6), index}, 1e-6);
    check_op([](const Tensors& t) { return index_select(t[0], 1, t[1]); }, {normal({2, c.size, 4}, 7), index}, 1e-6);
  }
}

TEST_CASE("an id outside its range is reported when somebody waits, and touches nothing") {
  POLYGRAD_NEEDS_GPU();
  const testing::UncachedGuard exact;
  const Tensor table = normal({5, 4}, 1).to(gpu());
  const Tensor ids = Tensor::from_vector<std::int64_t>({0, 4, 5, -1, 2}).to(gpu());
  const Tensor y = embedding(table, ids);
  CHECK_THROWS_WITH_AS(
      y.to(Device::cpu()),
      doctest::Contains("[index] the GPU met an index outside its range: the value at position 2 of an "
                        "operation's ids; expected 0 <= value < 5."),
      IndexError);
  const std::vector<float> got = y.to_vector<float>();  // told once
  CHECK(std::vector<float>(got.begin() + 8, got.begin() + 16) == std::vector<float>(8, 0.0f));
  CHECK_THROWS_AS(synchronize((void(gather(table, 0, full({2, 4}, 9, {.dtype = DType::i64, .device = gpu()}))), gpu())),
                  IndexError);
  CHECK_NOTHROW(synchronize(gpu()));
}

TEST_CASE("losses: many classes, weights, places, ignored rows") {
  POLYGRAD_NEEDS_GPU();
  Generator generator(3);
  std::vector<std::int64_t> ids(60);
  for (std::int64_t& id : ids) id = generator.bernoulli(0.2) ? -100 : generator.integer(0, 90);
  const Tensor weight = exp(normal({90}, 8));
  for (const bool average : {false, true}) {
    const CrossEntropyOptions options{.label_smoothing = 0.1, .reduction = average ? Reduction::mean : Reduction::sum};
    for (const bool places : {false, true}) {
      const Tensor logits = normal(places ? Shape{6, 90, 10} : Shape{60, 90}, 9) * 8.0;
      const Tensor target = Tensor::from_vector(ids, places ? Shape{6, 10} : Shape{60});
      check_op(
          [&](const Tensors& t) {
            CrossEntropyOptions own = options;
            own.class_weight = weight.to(t[0].device());
            return cross_entropy(t[0], t[1], own);
          },
          {logits, target}, 2e-6);
    }
  }
  const Tensor nothing = full({4}, -100, {.dtype = DType::i64});
  check_op([](const Tensors& t) { return cross_entropy(t[0], t[1]); }, {normal({4, 5}, 1), nothing}, 0);
}

TEST_CASE("dropout: the CPU's own mask, for lengths that are no multiple of four too") {
  POLYGRAD_NEEDS_GPU();
  for (const Shape& shape : {Shape{5, 7, 3}, Shape{3, 4096}, Shape{2, 1}}) {
    check_op(
        [](const Tensors& t) {
          Generator generator(11, 3, 5);
          return dropout(t[0], 0.3, generator);
        },
        {normal(shape, 1)}, 0);
  }
}

TEST_CASE("products of batches, with transposed and repeated factors") {
  POLYGRAD_NEEDS_GPU();
  const auto product = [](const Tensors& t) { return matmul(t[0], t[1]); };
  check_op(product, {normal({3, 4, 5, 6}, 1), normal({3, 4, 6, 7}, 2)});
  check_op(product, {normal({3, 4, 5, 6}, 1), normal({4, 6, 7}, 2)});
  check_op(product, {normal({3, 1, 5, 6}, 1), normal({1, 4, 6, 7}, 2)});
  check_op(product, {normal({8, 5, 6}, 1), normal({6, 7}, 2)});
  const auto gelu_layer = [](const Tensors& t) { return linear_gelu(t[0], t[1], t[2]); };
  check_op(gelu_layer, {normal({300, 33}, 1), normal({65, 33}, 2), normal({65}, 3)}, 5e-6);
  // A bias that begins between two multiples of 16 bytes.
  const auto layer = [](const Tensors& t) { return linear(t[0], t[1], slice(t[2], 0, 1, 65)); };
  check_op(layer, {normal({40, 32}, 1), normal({64, 32}, 2), normal({65}, 3)});
}

// --- attention -------------------------------------------------------------------------------------------------------

TEST_CASE("attention: several tiles, every path, masks, bias and dropout; wide heads") {
  POLYGRAD_NEEDS_GPU();
  Generator generator(2);
  const std::int64_t batch = 3, heads = 2, tokens = 70;
  std::vector<std::uint8_t> seen(static_cast<std::size_t>(batch * tokens));
  std::vector<std::int32_t> region(static_cast<std::size_t>(tokens));
  for (std::uint8_t& flag : seen) flag = generator.bernoulli(0.8);
  for (std::size_t i = 0; i < region.size(); ++i) region[i] = static_cast<std::int32_t>(i / 25);
  const Tensor mask = Tensor::from_vector(seen, {batch, tokens}).to(DType::boolean);
  const Tensor regions = Tensor::from_vector(region, {1, tokens});
  for (const char* phi : {"softmax", "x", "x3", "gelu"}) {
    for (const AttentionPath path : {AttentionPath::tiled, AttentionPath::materialised, AttentionPath::linear}) {
      const bool linear = path == AttentionPath::linear;
      if (linear && std::string(phi) != "x") continue;
      for (const std::int64_t width : {5, 200}) {
        CAPTURE(phi);
        CAPTURE(static_cast<int>(path));
        CAPTURE(width);
        const auto op = [&](const Tensors& t) {
          Generator draws(4, 2, 1);
          AttentionParams params;
          params.phi = parse_activation(phi);
          params.divisor = 4;
          params.path = path;
          params.dropout = linear ? 0 : 0.25;
          params.generator = &draws;
          AttentionMasks masks;
          masks.key_mask = mask.to(t[0].device());
          masks.query_mask = mask.to(t[0].device());
          if (!linear) masks.bias = t[1];
          if (!linear) masks.regions = regions.to(t[0].device());
          const Tensor y = attention_qkv(t[0], params, masks);
          return linear ? y + 0.0 * sum(t[1]) : y;
        };
        check_op(op, {normal({batch, tokens, 3, heads, width}, 1), normal({2, heads, tokens, tokens}, 2)}, 5e-6);
      }
    }
  }
}

TEST_CASE("the norms of attention") {
  POLYGRAD_NEEDS_GPU();
  const Tensor x = normal({2, 40, 6}, 1), q = normal({2, 3, 40, 5}, 2), k = normal({2, 3, 40, 5}, 3);
  for (const char* phi : {"softmax", "x", "x3", "tanh"}) {
    CAPTURE(phi);
    AttentionParams params;
    params.phi = parse_activation(phi);
    params.divisor = 3;
    const AttentionNorms cpu = attention_norms(x, q, k, params);
    const AttentionNorms there = attention_norms(x.to(gpu()), q.to(gpu()), k.to(gpu()), params);
    CHECK(error_of(cpu.a, there.a) <= 1e-12);
    CHECK(error_of(cpu.j_s, there.j_s) <= 1e-12);
    CHECK(error_of(cpu.j_q, there.j_q) <= 1e-12);
    CHECK(error_of(cpu.j_k, there.j_k) <= 1e-12);
  }
}

// --- updates in place ------------------------------------------------------------------------------------------------

TEST_CASE("one step of every optimizer over tensors of many sizes, as on the CPU") {
  POLYGRAD_NEEDS_GPU();
  const testing::UncachedGuard exact;
  const std::vector<Shape> shapes = {{1}, {3, 5}, {8192}, {8193}, {40000}, {}, {0, 4}, {17, 31}};
  for (const DType dtype : {DType::f32, DType::f64}) {
    const double tolerance = dtype == DType::f32 ? 1e-6 : 1e-14;
    std::vector<Tensors> results[2];
    for (const Device device : {Device::cpu(), gpu()}) {
      const auto make = [&](std::uint64_t seed, bool positive) {
        Tensors list;
        for (const Shape& shape : shapes) {
          const Tensor x = normal(shape, seed++, dtype);
          list.push_back((positive ? square(x) : x).to(device).detach());
        }
        return list;
      };
      Tensors params = make(1, false), grads = make(100, false), mean = make(200, false), square_mean = make(300, true);
      Tensors momentum = make(400, false), averages = make(500, false);
      std::vector<AdamWTensors> adamw;
      std::vector<SgdTensors> sgd;
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        adamw.push_back({params[i], grads[i], mean[i], square_mean[i]});
        sgd.push_back({params[i], grads[i], momentum[i]});
      }
      adamw_step(adamw, {.lr = 1e-2, .weight_decay = 0.1, .step = 3});
      adamw_step(adamw, {.lr = 1e-2, .weight_decay = 0.1, .step = 4, .grad_scale = 0.3});
      sgd_step(sgd,
               {.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true, .first = false, .grad_scale = 0.7});
      ema_update(averages, params, 0.999);
      ema_update(averages, params, 0.3);
      const double norm = global_norm(grads), clipped = clip_grad_norm(grads, 1.5);
      CHECK(norm == clipped);
      Tensor number = full({}, norm, {.dtype = DType::f64});
      results[device == gpu()] = {params, mean, square_mean, momentum, averages, grads, {number}};
    }
    for (std::size_t list = 0; list < results[0].size(); ++list) {
      for (std::size_t i = 0; i < results[0][list].size(); ++i) {
        CAPTURE(list);
        CAPTURE(i);
        CHECK(error_of(results[0][list][i], results[1][list][i]) <= tolerance);
      }
    }
  }
  CHECK(std::isnan(global_norm({full({3}, 1, {.device = gpu()}), full({2}, std::nan(""), {.device = gpu()})})));
  CHECK(global_norm({full({4}, 1e30, {.device = gpu()})}) == doctest::Approx(2e30));
}

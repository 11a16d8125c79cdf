// Attention on tensor cores: values and gradients of 16-bit inputs against the CPU in f64 on the same rounded numbers.
// On a machine without a GPU each warp's matrix instruction is a plain product (ops/cuda/mma.h), and all around it
// (tiles, indices, masks, barriers, copies) is the kernels' own.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>

#include "engine/autograd.h"
#include "engine/factory.h"
#include "engine/generator.h"
#include "engine/testing.h"
#include "engine/workspace.h"
#include "ops/attention.h"
#include "ops/copy.h"
#include "ops/kernels/attention.h"
#include "ops/view.h"
#include "tests/cuda/gpu.h"
#if defined(POLYGRAD_HOST_CUDA)
#include "ops/cuda/attention_mma_launch.h"
#include "tests/cuda/host/host_cuda.h"
#endif

using namespace polygrad;
using polygrad::testing::gpu;

namespace {

struct Case {
  std::string phi;
  DType dtype = DType::bf16;
  std::int64_t batch = 2, heads = 1, queries = 65, keys = 65, width = 64;
  bool key_mask = false, query_mask = false, bias = false, regions = false;
  double dropout = 0;
  enum { separate, packed, shifted } layout = separate;  // shifted: packed, and at odd addresses
  double divisor = 16;                                   // of elementwise φ
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.phi << ' ' << to_string(c.dtype) << " (" << c.batch << ", " << c.heads << ", " << c.queries << '|'
             << c.keys << ", " << c.width << ')' << (c.key_mask ? " key_mask" : "")
             << (c.query_mask ? " query_mask" : "") << (c.bias ? " bias" : "") << (c.regions ? " regions" : "")
             << (c.dropout > 0 ? " dropout" : "") << " layout " << static_cast<int>(c.layout);
}

Tensor normal(const Shape& shape, std::uint64_t seed, DType dtype) {
  Generator generator(seed);
  return randn(shape, {.generator = &generator}).to(dtype);
}

Tensor random_mask(const Shape& shape, std::uint64_t seed) {
  Generator generator(seed);
  std::vector<std::uint8_t> flags(static_cast<std::size_t>(shape.numel()));
  for (std::uint8_t& flag : flags) flag = generator.bernoulli(0.7);
  flags[0] = 0;
  return Tensor::from_vector(flags, shape).to(DType::boolean);
}

// Rows of (B, N, H, d) as the kernels take them.
TensorRef as_heads(const Tensor& x) {
  TensorRef ref = x.ref();
  std::swap(ref.sizes[1], ref.sizes[2]);
  std::swap(ref.strides[1], ref.strides[2]);
  return ref;
}

// Everything in f64 on the CPU, or in 16 bit on the GPU, from the same numbers.
struct Inputs {
  Tensor q, k, v, grad;  // (B, N, H, d), on the CPU
  AttentionParams params;
  AttentionMasks masks;
};

Inputs make_inputs(const Case& c) {
  Inputs in;
  in.q = normal({c.batch, c.queries, c.heads, c.width}, 1, c.dtype);
  in.k = normal({c.batch, c.keys, c.heads, c.width}, 2, c.dtype);
  in.v = normal({c.batch, c.keys, c.heads, c.width}, 3, c.dtype);
  in.grad = normal({c.batch, c.queries, c.heads, c.width}, 4, c.dtype);
  in.params.phi = parse_activation(c.phi);
  in.params.divisor = in.params.phi.is_softmax() ? 1 : c.divisor;
  in.params.dropout = c.dropout;
  in.params.path = AttentionPath::materialised;
  if (c.key_mask) in.masks.key_mask = random_mask({c.batch, c.keys}, 5);
  if (c.query_mask) in.masks.query_mask = random_mask({c.batch, c.queries}, 6);
  if (c.bias) in.masks.bias = normal({1, c.heads, c.queries, c.keys}, 7, c.dtype);
  if (c.regions) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(c.keys));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i / 20);
    in.masks.regions = Tensor::from_vector(ids, {1, c.keys});
  }
  return in;
}

using Tensors = std::vector<Tensor>;  // out, dq, dk, dv and, where there is a bias, dbias

Tensors on_cpu(const Inputs& in) {
  const auto leaf = [](const Tensor& x) { return x.to(DType::f64).detach().set_requires_grad(true); };
  Tensors leaves = {leaf(in.q), leaf(in.k), leaf(in.v)};
  AttentionMasks masks = in.masks;
  if (masks.bias.defined()) {
    masks.bias = leaf(masks.bias);
    leaves.push_back(masks.bias);
  }
  const auto heads = [](const Tensor& x) { return transpose(x, 1, 2); };
  Generator draws(11, 3, 5);
  AttentionParams params = in.params;
  params.generator = &draws;
  const Tensor out = attention(heads(leaves[0]), heads(leaves[1]), heads(leaves[2]), params, masks);
  Tensors results = {reshape(out, in.q.shape()).detach()};
  for (const Tensor& g : grad(out, leaves, reshape(in.grad.to(DType::f64), out.shape()))) results.push_back(g);
  return results;
}

// Three tensors in one, as a projection writes them.
struct Packed {
  Tensor all;
  TensorRef q, k, v;
  Packed(const Case& c, const Inputs* in) {
    if (c.layout == Case::separate) {
      const TensorOptions options{.dtype = c.dtype, .device = gpu()};
      const Shape rows{c.batch, c.queries, c.heads, c.width}, columns{c.batch, c.keys, c.heads, c.width};
      for (const auto& [shape, from, to] : {std::tuple{rows, in ? &in->q : nullptr, &q},
                                            {columns, in ? &in->k : nullptr, &k},
                                            {columns, in ? &in->v : nullptr, &v}}) {
        parts.push_back(from ? from->to(gpu()) : Tensor::empty(shape, options));
        *to = as_heads(parts.back());
      }
      return;
    }
    const std::int64_t shift = c.layout == Case::shifted ? 1 : 0, row = 3 * c.heads * c.width + shift;
    Tensor flat = full({c.batch * c.queries * row + shift}, 0, {.dtype = c.dtype});
    if (in != nullptr) {
      const Tensor joined = stack({in->q, in->k, in->v}, 2).contiguous();  // (B, N, 3, H, d)
      const auto numbers = joined.to(DType::f32).to_vector<float>();
      std::vector<float> spread(static_cast<std::size_t>(flat.numel()));
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const std::size_t wide = static_cast<std::size_t>(row - shift);
        spread[i / wide * static_cast<std::size_t>(row) + i % wide + static_cast<std::size_t>(shift)] = numbers[i];
      }
      flat = Tensor::from_vector(spread, flat.shape()).to(c.dtype);
    }
    all = flat.to(gpu());
    for (int which = 0; which < 3; ++which) {
      TensorRef& ref = which == 0 ? q : which == 1 ? k : v;
      ref.data = all.ref().as<std::uint16_t>() + shift + which * c.heads * c.width;
      ref.dtype = c.dtype;
      ref.dim = 4;
      const std::int64_t sizes[] = {c.batch, c.heads, c.queries, c.width};
      const std::int64_t strides[] = {c.queries * row, c.width, row, 1};
      std::copy_n(sizes, 4, ref.sizes);
      std::copy_n(strides, 4, ref.strides);
    }
  }
  // One of q, k, v as (B, N, H, d), on the CPU.
  Tensor read(const Case& c, int which) const {
    if (c.layout == Case::separate) return parts[static_cast<std::size_t>(which)].to(Device::cpu());
    const Tensor host = all.to(Device::cpu());
    const TensorRef& ref = which == 0 ? q : which == 1 ? k : v;
    const std::int64_t first = ref.as<std::uint16_t>() - all.ref().as<std::uint16_t>();
    return make_view(host, {c.batch, c.queries, c.heads, c.width}, {ref.strides[0], ref.strides[2], ref.strides[1], 1},
                     first)
        .contiguous();
  }

 private:
  Tensors parts;
};

Tensors on_gpu(const Case& c, const Inputs& in) {
  const testing::UncachedGuard exact;  // memory ends where tensors end, and is NaN at first
  const testing::PoisonGuard poison;
  const Packed inputs(c, &in), gradients(c, nullptr);
  const TensorOptions options{.dtype = c.dtype, .device = gpu()};
  const Tensor grad = in.grad.to(gpu());
  Tensor out = Tensor::empty(in.q.shape(), options), dbias, state;
  const auto there = [](const Tensor& x) { return x.defined() ? x.to(gpu()) : Tensor(); };
  const Tensor bias = there(in.masks.bias), key_mask = there(in.masks.key_mask),
               query_mask = there(in.masks.query_mask), regions = there(in.masks.regions);
  const auto optional = [](const Tensor& x) { return x.defined() ? x.ref() : TensorRef{}; };
  AttentionProblem problem;
  problem.q = inputs.q, problem.k = inputs.k, problem.v = inputs.v;
  problem.bias = optional(bias), problem.key_mask = optional(key_mask);
  problem.query_mask = optional(query_mask), problem.regions = optional(regions);
  problem.phi = in.params.phi.id;
  problem.score_scale = 1 / std::sqrt(static_cast<double>(c.width));
  problem.divisor = in.params.divisor;
  if (c.dropout > 0) {
    Generator draws(11, 3, 5);
    const RandomStream stream = draws.take();
    problem.dropout.threshold = static_cast<std::uint32_t>(std::lround(c.dropout * 65536));
    problem.dropout.scale = 65536.0 / (65536.0 - problem.dropout.threshold);
    problem.dropout.seed = stream.seed;
    problem.dropout.offset = static_cast<std::uint32_t>(stream.offset);
    problem.dropout.first_sample = stream.first_sample;
  }
  if (in.params.phi.is_softmax()) {
    state = Tensor::empty({2, c.batch, c.heads, c.queries}, {.dtype = DType::f32, .device = gpu()});
  }
  if (bias.defined()) dbias = Tensor::empty(bias.shape(), options);
  Workspace workspace(gpu());
  const AttentionPathKernels& kernels = attention_kernels(DeviceType::cuda).tiled;
  kernels.forward(workspace, problem, as_heads(out), optional(state));
  kernels.backward(workspace, problem, as_heads(out), optional(state), as_heads(grad),
                   {gradients.q, gradients.k, gradients.v, optional(dbias)});
  Tensors results = {out.to(Device::cpu()), gradients.read(c, 0), gradients.read(c, 1), gradients.read(c, 2)};
  if (dbias.defined()) results.push_back(dbias.to(Device::cpu()));
  return results;
}

// The largest difference, relative to the largest number; to 0.1 where all should be nearly 0.
double error_of(const Tensor& expected, const Tensor& got) {
  const std::vector<double> a = expected.to_vector<double>(), b = got.to(DType::f64).to_vector<double>();
  REQUIRE(a.size() == b.size());
  double largest = 0.1, worst = 0;
  for (const double x : a) largest = std::max(largest, std::abs(x));
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(a[i] - b[i]) / largest;
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
  }
  return worst;
}

bool same_bits(const Tensors& a, const Tensors& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto x = a[i].to(DType::f32).to_vector<float>(), y = b[i].to(DType::f32).to_vector<float>();
    if (x.size() != y.size() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

void check_case(const Case& c) {
  CAPTURE(c);
  const Inputs in = make_inputs(c);
  const Tensors expected = on_cpu(in), got = on_gpu(c, in);
  REQUIRE(expected.size() == got.size());
  const double tolerance = c.dtype == DType::bf16 ? 1e-2 : 2e-3;
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(error_of(expected[i], got[i]) <= tolerance);
  }
#if defined(POLYGRAD_HOST_CUDA)
  host_cuda::settings().order = host_cuda::Order::descending;
#endif
  CHECK(same_bits(got, on_gpu(c, in)));
#if defined(POLYGRAD_HOST_CUDA)
  host_cuda::settings().order = host_cuda::Order::ascending;
#endif
}

}  // namespace

TEST_CASE("attention on tensor cores: every φ in both 16-bit types, plain and with everything at once") {
  POLYGRAD_NEEDS_GPU();
  for (const Activation phi : all_activations()) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      Case c{.phi = to_string(phi), .dtype = dtype, .queries = 40, .keys = 70, .width = 32};
      if (phi.power() > 3) c.divisor = 4096;  // f16 ends at 65504
      check_case(c);
      c.queries = c.keys = 67;
      c.batch = 3, c.heads = 2, c.width = 24;
      c.key_mask = c.query_mask = c.bias = c.regions = true;
      c.dropout = 0.25;
      check_case(c);
    }
  }
}

TEST_CASE("attention on tensor cores: every width, and numbers of tokens around those of a tile") {
  POLYGRAD_NEEDS_GPU();
  bool narrow = false;
  for (const char* phi : {"softmax", "x3"}) {
    for (const std::int64_t width : {8, 32, 48, 64, 80, 96, 120, 128}) {
      for (const std::int64_t tokens : {1, 17, 64, 65, 130}) {
        if (tokens == 130 && width != 64 && width != 128) continue;
        narrow = !narrow;
        check_case({.phi = phi,
                    .dtype = narrow ? DType::bf16 : DType::f16,
                    .batch = 1,
                    .queries = tokens,
                    .keys = tokens,
                    .width = width,
                    .dropout = width == 96 ? 0.5 : 0.0,
                    .layout = width == 48                  ? Case::shifted
                              : width == 64 || width == 96 ? Case::packed
                                                           : Case::separate});
      }
    }
  }
}

TEST_CASE("attention on tensor cores: one query (class attention), and one key") {
  POLYGRAD_NEEDS_GPU();
  for (const char* phi : {"softmax", "x3", "gelu"}) {
    check_case({.phi = phi, .heads = 2, .queries = 1, .keys = 70, .width = 48, .key_mask = true});
    check_case({.phi = phi, .heads = 2, .queries = 70, .keys = 1, .width = 128, .query_mask = true, .bias = true});
  }
}

#if defined(POLYGRAD_HOST_CUDA)
TEST_CASE(
    "attention on tensor cores: rows are read 16 bytes at a time where each that is named begins at such a place") {
  alignas(16) static std::uint16_t numbers[8];
  TensorRef x;
  x.data = numbers;
  x.dtype = DType::bf16;
  x.dim = 4;
  const auto wide = [&](std::int64_t tokens, std::int64_t batch, std::int64_t head, std::int64_t row) {
    const std::int64_t sizes[] = {2, 3, tokens, 64}, strides[] = {batch, head, row, 1};
    std::copy(std::begin(sizes), std::end(sizes), x.sizes);
    std::copy(std::begin(strides), std::end(strides), x.strides);
    return cuda::attention::alignment_of({x}, {}).loads;
  };
  CHECK(wide(9, 192 * 9, 64, 192));
  CHECK(!wide(9, 192 * 9, 60, 192));
  CHECK(!wide(9, 192 * 9 + 4, 64, 192));
  CHECK(!wide(9, 65 * 24, 64, 65));
  CHECK(!wide(1, 65 * 24, 65 * 8, 65));  // of one token too: a kernel names the rows behind it
  x.data = numbers + 1;
  CHECK(!wide(9, 192 * 9, 64, 192));
}
#endif

// Every kernel of the tables on bf16 and f16: it computes in f32 what it computes for the same numbers stored in f32,
// and rounds once. The numbers in f32 are known to be right from the op table.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "engine/backend/kernels.h"
#include "engine/factory.h"
#include "engine/generator.h"
#include "engine/testing.h"
#include "engine/workspace.h"
#include "ops/binary.h"
#include "ops/kernels/attention.h"
#include "ops/kernels/attention_activation.h"
#include "ops/kernels/binary.h"
#include "ops/kernels/dropout.h"
#include "ops/kernels/index.h"
#include "ops/kernels/loss.h"
#include "ops/kernels/matmul.h"
#include "ops/kernels/norm.h"
#include "ops/kernels/patch.h"
#include "ops/kernels/pre_norm.h"
#include "ops/kernels/reduce.h"
#include "ops/kernels/softmax.h"
#include "ops/kernels/unary.h"
#include "ops/unary.h"
#include "tests/cuda/gpu.h"

using namespace polygrad;
using polygrad::testing::gpu;

namespace {

using Tensors = std::vector<Tensor>;
using Kernel = std::function<void(Workspace&, const Tensors& in, const Tensors& out)>;

Tensor normal(const Shape& shape, std::uint64_t seed) {
  Generator generator(seed);
  return randn(shape, {.generator = &generator});
}
Tensor positive(const Shape& shape, std::uint64_t seed) { return exp(normal(shape, seed)); }
Tensor ids(const Shape& shape, std::uint64_t seed, std::int64_t bound) {
  Generator generator(seed);
  std::vector<std::int64_t> values(static_cast<std::size_t>(shape.numel()));
  for (std::int64_t& value : values) value = generator.integer(0, bound);
  return Tensor::from_vector(values, shape);
}

// An argument that is stored in 16 bit, unless it is fixed: then as it is.
struct In {
  Tensor value;
  bool fixed = false;
  In(Tensor value) : value(std::move(value)), fixed(this->value.dtype() != DType::f32) {}
};
In fixed(Tensor value) {
  In in(std::move(value));
  in.fixed = true;
  return in;
}
// A result in 16 bit, unless it has a dtype of its own.
struct Out {
  Shape shape;
  std::optional<DType> dtype;
};

// Numbers of products come from other instructions on a GPU, and sums in another order; the tests' runtime has one way.
#if defined(POLYGRAD_HOST_CUDA)
constexpr double kProducts = 0;
#else
constexpr double kProducts = 0x1p-7;
#endif

// The largest difference, relative to the largest number.
double error_of(const Tensor& expected, const Tensor& got) {
  const std::vector<double> a = expected.to(Device::cpu()).to(DType::f64).to_vector<double>();
  const std::vector<double> b = got.to(Device::cpu()).to(DType::f64).to_vector<double>();
  REQUIRE(a.size() == b.size());
  double largest = 1e-30, worst = 0;
  for (const double x : a) largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : largest;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    const double error = std::abs(a[i] - b[i]) / largest;
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
  }
  return worst;
}

// tolerance: 0 where each result is rounded once; more where it is formed from others that were.
void check(const std::string& name, const std::vector<In>& inputs, const std::vector<Out>& results,
           const Kernel& kernel, double tolerance = 0) {
  const testing::UncachedGuard exact;
  CAPTURE(name);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    CAPTURE(to_string(dtype));
    Tensors narrow, wide, got, expected;
    for (const In& in : inputs) {
      narrow.push_back((in.fixed ? in.value : in.value.to(dtype)).to(gpu()));
      wide.push_back((in.fixed ? in.value : in.value.to(dtype).to(DType::f32)).to(gpu()));
    }
    for (const Out& out : results) {  // poisoned
      const auto make = [&](DType own) { return full(out.shape, is_floating(own) ? NAN : 99, {own, gpu()}); };
      got.push_back(make(out.dtype.value_or(dtype)));
      expected.push_back(make(out.dtype.value_or(DType::f32)));
    }
    Workspace workspace(gpu());
    kernel(workspace, narrow, got);
    kernel(workspace, wide, expected);
    for (std::size_t i = 0; i < results.size(); ++i) {
      CAPTURE(i);
      CHECK(error_of(expected[i].to(got[i].dtype()), got[i]) <= tolerance);
    }
  }
}

// The reference with other sizes, contiguous.
TensorRef as(const Tensor& x, std::initializer_list<std::int64_t> sizes) {
  TensorRef ref = x.ref();
  ref.dim = static_cast<std::int32_t>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), ref.sizes);
  std::int64_t step = 1;
  for (std::int32_t i = ref.dim - 1; i >= 0; step *= ref.sizes[i], --i) ref.strides[i] = step;
  return ref;
}
TensorRef turned(TensorRef ref) {
  std::swap(ref.sizes[0], ref.sizes[1]);
  std::swap(ref.strides[0], ref.strides[1]);
  return ref;
}

constexpr DropoutStream kStream{.seed = 3, .offset = 1, .first_sample = 2, .threshold = 5000000, .scale = 1.5};

}  // namespace

TEST_CASE("16 bit: the engine's kernels") {
  POLYGRAD_NEEDS_GPU();
  const EngineKernels& kernels = engine_kernels(gpu());
  for (const std::int64_t n : {64, 61}) {
    check("accumulate", {normal({n}, 1), normal({n}, 2)}, {{{n}, {}}},
          [&](Workspace&, const Tensors& t, const Tensors& y) {
            kernels.copy(t[0].ref(), y[0].ref());
            kernels.accumulate(t[1].ref(), y[0].ref());
          });
    check("cast", {normal({8, n}, 1)}, {{{8, n}, DType::f32}, {{n, 8}, DType::f32}, {{8, n}, DType::i32}},
          [&](Workspace&, const Tensors& t, const Tensors& y) {
            kernels.copy(t[0].ref(), y[0].ref());
            kernels.copy(turned(t[0].ref()), y[1].ref());
            kernels.copy(t[0].ref(), y[2].ref());
          });
    check("cast to 16 bit", {fixed(normal({8, n}, 1))}, {{{8, n}, {}}, {{n, 8}, {}}},
          [&](Workspace&, const Tensors& t, const Tensors& y) {
            kernels.copy(t[0].ref(), y[0].ref());
            kernels.copy(turned(t[0].ref()), y[1].ref());
          });
  }
}

TEST_CASE("16 bit: elementwise maps") {
  POLYGRAD_NEEDS_GPU();
  const UnaryKernels& unary = unary_kernels(DeviceType::cuda);
  const BinaryKernels& binary = binary_kernels(DeviceType::cuda);
  for (const std::int64_t n : {64, 60, 61}) {
    const Tensor x = positive({n}, 1), g = normal({n}, 2);
    for (int i = 0; i < functors::All::kSize; ++i) {
      CAPTURE(i);
      check("unary", {x, g}, {{{n}, {}}, {{n}, {}}}, [&](Workspace& w, const Tensors& t, const Tensors& y) {
        unary.forward[i](w, t[0].ref(), y[0].ref());
        unary.backward[i](w, t[1].ref(), t[0].ref(), y[1].ref());
      });
    }
    check("pow", {x, g}, {{{n}, {}}, {{n}, {}}}, [&](Workspace& w, const Tensors& t, const Tensors& y) {
      unary.pow(w, t[0].ref(), 3, y[0].ref());
      unary.pow_backward(w, t[1].ref(), t[0].ref(), 3, y[1].ref());
    });
    for (const BinaryKernels::Arithmetic& op :
         {binary.add, binary.sub, binary.mul, binary.div, binary.maximum, binary.minimum}) {
      // b is a row that broadcasts.
      check(
          "binary", {normal({6, n}, 3), positive({n}, 4), normal({6, n}, 5)}, {{{6, n}, {}}},
          [&](Workspace& w, const Tensors& t, const Tensors& y) { op.forward(w, t[0].ref(), t[1].ref(), y[0].ref()); });
      for (int which = 0; which < 2; ++which) {
        if (op.backward[which] == nullptr) continue;
        check("binary backward", {normal({6, n}, 3), positive({n}, 4), normal({6, n}, 5)}, {{{6, n}, {}}},
              [&](Workspace& w, const Tensors& t, const Tensors& y) {
                op.backward[which](w, t[2].ref(), t[0].ref(), t[1].ref(), y[0].ref());
              });
      }
    }
    check("compare", {normal({n}, 3), normal({n}, 4)}, {{{n}, DType::boolean}},
          [&](Workspace& w, const Tensors& t, const Tensors& y) {
            binary.compare(w, Comparison::lt, t[0].ref(), t[1].ref(), y[0].ref());
          });
  }
}

TEST_CASE("16 bit: reductions") {
  POLYGRAD_NEEDS_GPU();
  const ReduceKernels& kernels = reduce_kernels(DeviceType::cuda);
  for (const std::int64_t n : {40, 41}) {
    check("sum", {normal({6, n, 8}, 1)}, {{{6}, {}}, {{n, 8}, {}}, {{6, 8}, {}}, {{}, DType::f32}},
          [&](Workspace& w, const Tensors& t, const Tensors& y) {
            kernels.sum(w, t[0].ref(), 6, 0.5, y[0].ref());
            kernels.sum(w, t[0].ref(), 1, 1, y[1].ref());
            kernels.sum(w, t[0].ref(), 2, 1, y[2].ref());
            kernels.sum(w, t[0].ref(), 7, 1, y[3].ref());
          });
    check("amax", {normal({6, n, 3}, 2), normal({6, 3}, 3)},
          {{{6, 3}, {}}, {{6, n, 3}, {}}, {{6, 3}, DType::i64}, {{6, 2}, {}}, {{6, 2}, DType::i64}},
          [&](Workspace& w, const Tensors& t, const Tensors& y) {
            kernels.amax(w, t[0].ref(), y[0].ref());
            kernels.amax_backward(w, t[1].ref(), t[0].ref(), y[0].ref(), y[1].ref());
            kernels.argmax(w, t[0].ref(), y[2].ref());
            kernels.topk(w, as(t[0], {6, n * 3}), y[3].ref(), y[4].ref());
          });
  }
}

TEST_CASE("16 bit: softmax, along rows and columns") {
  POLYGRAD_NEEDS_GPU();
  const SoftmaxKernels& kernels = softmax_kernels(DeviceType::cuda);
  for (const std::int64_t n : {40, 41, 700, 5000}) {
    for (const std::int64_t inner : {1, 3}) {
      const Shape shape{4, n, inner};
      check("softmax", {normal(shape, 1), normal(shape, 2)}, {{shape, {}}, {shape, {}}, {shape, {}}, {shape, {}}},
            [&](Workspace& w, const Tensors& t, const Tensors& y) {
              kernels.softmax(w, t[0].ref(), y[0].ref());
              kernels.softmax_backward(w, t[1].ref(), t[0].ref(), y[1].ref());
              kernels.log_softmax(w, t[0].ref(), y[2].ref());
              kernels.log_softmax_backward(w, t[1].ref(), t[0].ref(), y[3].ref());
            });
    }
  }
}

TEST_CASE("16 bit: layer norm, with parameters in f32 and from an f32 stream") {
  POLYGRAD_NEEDS_GPU();
  const NormKernels& kernels = norm_kernels(DeviceType::cuda);
  for (const std::int64_t n : {40, 41, 700, 5000}) {
    const std::int64_t rows = 70;
    const Tensor weight = normal({n}, 2), bias = normal({n}, 3), mean = normal({rows}, 4).to(DType::f64);
    const Tensor rstd = positive({rows}, 5).to(DType::f64);
    for (const bool stream : {false, true}) {
      const Tensor x = normal({rows, n}, 1);
      check("layer_norm", {stream ? fixed(x) : In(x), fixed(weight), fixed(bias), normal({rows, n}, 6), mean, rstd},
            {{{rows, n}, {}},
             {{rows}, DType::f64},
             {{rows}, DType::f64},
             {{rows, n}, stream ? std::optional(DType::f32) : std::nullopt},
             {{n}, DType::f32},
             {{n}, DType::f32}},
            [&](Workspace& w, const Tensors& t, const Tensors& y) {
              kernels.layer_norm(w, t[0].ref(), t[1].ref(), t[2].ref(), 1e-5, y[0].ref(), y[1].ref(), y[2].ref());
              kernels.layer_norm_backward(w, t[3].ref(), t[0].ref(), t[1].ref(), t[4].ref(), t[5].ref(), y[3].ref(),
                                          y[4].ref(), y[5].ref());
            });
    }
  }
}

TEST_CASE("16 bit: dropout, drop path, and a branch beside an f32 stream") {
  POLYGRAD_NEEDS_GPU();
  const DropoutKernels& kernels = dropout_kernels(DeviceType::cuda);
  for (const std::int64_t n : {40, 41}) {
    check("dropout", {normal({6, n}, 1), normal({6, n}, 2), fixed(normal({6, n}, 3))},
          {{{6, n}, {}}, {{6, n}, {}}, {{6, n}, DType::f32}, {{6, n}, {}}},
          [&](Workspace& w, const Tensors& t, const Tensors& y) {
            kernels.dropout(w, t[0].ref(), kStream, y[0].ref());
            kernels.drop_path(w, t[0].ref(), kStream, y[1].ref());
            kernels.residual_add(w, t[2].ref(), t[0].ref(), kStream, y[2].ref());
            kernels.residual_add(w, t[1].ref(), t[0].ref(), kStream, y[3].ref());
          });
  }
}

TEST_CASE("16 bit: reads by index and their gradients, patches") {
  POLYGRAD_NEEDS_GPU();
  const IndexKernels& kernels = index_kernels(DeviceType::cuda);
  const PatchKernels& patch = patch_kernels(DeviceType::cuda);
  for (const std::int64_t inner : {8, 5}) {
    check("index",
          {normal({2, 9, inner}, 1), ids({2, 30, inner}, 2, 9), ids({30}, 3, 9), normal({2, 30, inner}, 4),
           normal({2, 9, inner}, 5)},
          {{{2, 30, inner}, {}}, {{2, 9, inner}, {}}, {{2, 30, inner}, {}}, {{2, 9, inner}, {}}, {{30, 9}, {}}},
          [&](Workspace& w, const Tensors& t, const Tensors& y) {
            kernels.gather(w, t[0].ref(), t[1].ref(), y[0].ref());
            kernels.gather_backward(w, t[3].ref(), t[1].ref(), y[1].ref());
            kernels.select_rows(w, t[0].ref(), t[2].ref(), y[2].ref());
            kernels.select_rows_backward(w, t[3].ref(), t[2].ref(), 4, y[3].ref());
            kernels.one_hot(w, t[2].ref(), y[4].ref());
          });
    check("patch", {normal({2, 3, 8, 2 * inner}, 1)}, {{{2, 8, 3 * 2 * inner}, {}}, {{2, 3, 8, 2 * inner}, {}}},
          [&](Workspace& w, const Tensors& t, const Tensors& y) {
            patch.unfold(w, t[0].ref(), 2, inner, y[0].ref());
            patch.fold(w, y[0].ref(), 2, inner, y[1].ref());
          });
  }
}

TEST_CASE("16 bit: losses") {
  POLYGRAD_NEEDS_GPU();
  const LossKernels& kernels = loss_kernels(DeviceType::cuda);
  const CrossEntropyTerms terms{.label_smoothing = 0.1, .ignore_index = -100, .reduction = {false, false}};
  const Shape shape{6, 50, 2};
  check("cross_entropy", {normal(shape, 1), ids({6, 2}, 2, 50), normal({6, 2}, 3), positive(shape, 4)},
        {{{6, 2}, DType::f32},
         {{6, 2}, DType::f64},
         {{1}, DType::f64},
         {shape, {}},
         {{6, 2}, DType::f32},
         {{6, 2}, DType::f64},
         {shape, {}}},
        [&](Workspace& w, const Tensors& t, const Tensors& y) {
          kernels.cross_entropy(w, t[0].ref(), t[1].ref(), {}, terms, y[0].ref(), y[1].ref(), y[2].ref());
          kernels.cross_entropy_backward(w, t[2].ref(), t[0].ref(), t[1].ref(), {}, terms, y[1].ref(), y[2].ref(),
                                         y[3].ref());
          kernels.cross_entropy_soft(w, t[0].ref(), t[3].ref(), {}, terms, y[4].ref(), y[5].ref());
          kernels.cross_entropy_soft_backward(w, t[2].ref(), t[0].ref(), t[3].ref(), {}, terms, y[5].ref(), y[6].ref());
        });
  check("mse", {normal({300}, 1), normal({300}, 2), normal({1}, 3)}, {{{1}, DType::f32}, {{300}, {}}},
        [&](Workspace& w, const Tensors& t, const Tensors& y) {
          kernels.mse(w, t[0].ref(), t[1].ref(), {true, true}, y[0].ref());
          kernels.mse_backward(w, t[2].ref(), t[0].ref(), t[1].ref(), {true, true}, 1, y[1].ref());
        });
}

TEST_CASE("16 bit: products, into 16 bit and into f32") {
  POLYGRAD_NEEDS_GPU();
  const MatmulKernels& kernels = matmul_kernels(DeviceType::cuda);
  for (const std::int64_t k : {16, 13}) {
    const std::int64_t rows = 70, n = 24;
    check(
        "matmul", {normal({rows, k}, 1), normal({n, k}, 2), normal({rows, n}, 3)},
        {{{rows, n}, {}}, {{rows, n}, DType::f32}, {{n, k}, DType::f32}},
        [&](Workspace& w, const Tensors& t, const Tensors& y) {
          kernels.matmul(w, t[0].ref(), turned(t[1].ref()), y[0].ref());
          kernels.matmul(w, t[0].ref(), turned(t[1].ref()), y[1].ref());
          kernels.matmul(w, turned(t[2].ref()), t[0].ref(), y[2].ref());  // a weight's gradient
        },
        kProducts);
    check(
        "matmul of batches", {normal({3, 5, k}, 1), normal({3, k, 7}, 2)}, {{{3, 5, 7}, {}}, {{3, 5, 7}, DType::f32}},
        [&](Workspace& w, const Tensors& t, const Tensors& y) {
          kernels.matmul(w, t[0].ref(), t[1].ref(), y[0].ref());
          kernels.matmul(w, t[0].ref(), t[1].ref(), y[1].ref());
        },
        kProducts);
    check(
        "linear", {normal({rows, k}, 1), normal({n, k}, 2), fixed(normal({n}, 3))}, {{{rows, n}, {}}},
        [&](Workspace& w, const Tensors& t, const Tensors& y) {
          kernels.linear(w, t[0].ref(), t[1].ref(), t[2].ref(), y[0].ref());
        },
        0x1p-7);  // the bias is rounded as well
    check(
        "linear_gelu", {normal({rows, k}, 1), normal({n, k}, 2), fixed(normal({n}, 3))},
        {{{rows, n}, {}}, {{rows, n}, {}}},
        [&](Workspace& w, const Tensors& t, const Tensors& y) {
          kernels.linear_gelu(w, t[0].ref(), t[1].ref(), t[2].ref(), y[0].ref(), y[1].ref());
        },
        0x1p-6);
    check("linear_gelu_backward", {normal({rows, n}, 1), normal({rows, n}, 2)},
          {{{rows, n}, {}}, {{n}, DType::f32}, {{n}, DType::f32}},
          [&](Workspace& w, const Tensors& t, const Tensors& y) {
            kernels.linear_gelu_backward(w, t[0].ref(), t[1].ref(), y[0].ref(), y[1].ref());
            kernels.column_sums(w, t[0].ref(), y[2].ref());
          });
    // A weight that is rounded here, and arranged for the product: B by rows and by columns.
    for (const bool by_columns : {false, true}) {
      check(
          "packed", {normal({rows, k}, 1), normal(by_columns ? Shape{n, k} : Shape{k, n}, 2), fixed(normal({n}, 3))},
          {{{rows, n}, {}}, {{rows, n}, {}}, {{rows, n}, {}}, {{rows, n}, DType::f32}},
          [&](Workspace& w, const Tensors& t, const Tensors& y) {
            const Tensor weight = t[1].to(DType::f32), packed = Tensor::empty({k * n}, {t[0].dtype(), gpu()});
            kernels.pack(w, by_columns ? turned(weight.ref()) : weight.ref(), packed.ref());
            kernels.linear_packed(w, t[0].ref(), packed.ref(), t[2].ref(), y[0].ref());
            kernels.linear_gelu_packed(w, t[0].ref(), packed.ref(), t[2].ref(), y[1].ref(), y[2].ref());
            kernels.linear_packed(w, t[0].ref(), packed.ref(), {}, y[3].ref());
          },
          0x1p-6);
    }
  }
}

TEST_CASE("16 bit: the halves of a pre-norm block") {
  POLYGRAD_NEEDS_GPU();
  const PreNormKernels& kernels = pre_norm_kernels(DeviceType::cuda);
  const MatmulKernels& matmul = matmul_kernels(DeviceType::cuda);
  const std::int64_t rows = 36, width = 12, hidden = 20;
  const std::vector<In> inputs = {
      fixed(normal({rows, width}, 1)),   fixed(normal({width}, 2)),       fixed(normal({width}, 3)),
      fixed(normal({hidden, width}, 4)), fixed(normal({hidden}, 5)),      fixed(normal({width, hidden}, 6)),
      fixed(normal({width}, 7)),         fixed(normal({rows, width}, 8)), normal({rows, hidden}, 9)};
  const Out stream{{rows, width}, DType::f32}, statistic{{rows}, DType::f64}, vector{{width}, DType::f32};
  const Out of_hidden{{hidden}, DType::f32}, of_fc1{{hidden, width}, DType::f32}, of_fc2{{width, hidden}, DType::f32};
  const std::vector<Out> results = {{{rows, hidden}, {}},
                                    statistic,
                                    statistic,
                                    stream,
                                    vector,
                                    vector,
                                    of_fc1,
                                    of_hidden,
                                    stream,
                                    {{rows, hidden}, {}},
                                    of_fc2,
                                    vector,
                                    stream,
                                    {{rows, hidden}, {}},
                                    stream,
                                    vector,
                                    vector,
                                    of_fc1,
                                    of_hidden,
                                    of_fc2,
                                    vector};
  for (const std::uint32_t threshold : {0u, 5000000u}) {
    DropoutStream draws = kStream;
    draws.threshold = threshold;
    const BranchScale scale{.stream = draws, .rows_per_sample = 9};
    check(
        "pre_norm", inputs, results,
        [&](Workspace& w, const Tensors& t, const Tensors& y) {
          const bool narrow = t[8].dtype() != DType::f32;
          Tensors kept;
          // The weight, rounded and arranged: its transposed for a forward, itself for a backward.
          const auto layer = [&](int weight, int bias, bool forward) {
            RowLinear linear{t[weight].ref(), t[bias].ref()};
            if (!narrow) return linear;
            kept.push_back(Tensor::empty({t[weight].numel()}, {t[8].dtype(), gpu()}));
            matmul.pack(w, forward ? turned(t[weight].ref()) : t[weight].ref(), kept.back().ref());
            linear.packed = kept.back().ref();
            return linear;
          };
          const RowNorm norm{t[0].ref(), t[1].ref(), t[2].ref(), 1e-5, y[1].ref(), y[2].ref()};
          kernels.linear(w, norm, layer(3, 4, true), y[0].ref());
          kernels.linear_backward(w, norm, layer(3, 4, false), t[8].ref(), {y[3].ref(), y[4].ref(), y[5].ref()},
                                  {y[6].ref(), y[7].ref()});
          kernels.linear_residual(w, t[0].ref(), t[8].ref(), layer(5, 6, true), scale, y[8].ref());
          kernels.linear_residual_backward(w, t[8].ref(), layer(5, 6, false), scale, t[7].ref(), y[9].ref(),
                                           {y[10].ref(), y[11].ref()});
          kernels.mlp(w, norm, layer(3, 4, true), layer(5, 6, true), scale, y[13].ref(), y[12].ref());
          kernels.mlp_backward(w, norm, layer(3, 4, false), layer(5, 6, false), scale, y[13].ref(), t[7].ref(),
                               {y[14].ref(), y[15].ref(), y[16].ref()}, {y[17].ref(), y[18].ref()},
                               {y[19].ref(), y[20].ref()});
        },
        2e-2);
  }
}

TEST_CASE("16 bit: attention, tiled and linear, with bias and its gradient in f32") {
  POLYGRAD_NEEDS_GPU();
  const AttentionKernels& kernels = attention_kernels(DeviceType::cuda);
  const Shape shape{2, 3, 40, 16};
  const auto problem_of = [](const Tensors& t, std::int32_t phi) {
    AttentionProblem problem;
    problem.q = t[0].ref(), problem.k = t[1].ref(), problem.v = t[2].ref();
    problem.phi = phi;
    problem.score_scale = 0.1;  // scores of about 1/2: their ninth powers, in f16, must be finite
    problem.divisor = 2;
    return problem;
  };
  const std::vector<In> inputs = {normal(shape, 1), normal(shape, 2), normal(shape, 3), normal(shape, 4),
                                  fixed(normal({1, 3, 40, 40}, 5) * 0.25)};
  const Out state{{2, 2, 3, 40}, DType::f32}, bias{{1, 3, 40, 40}, DType::f32}, square{{2, 3, 16, 16}, {}};
  for (std::int32_t phi = attention_activation::kSoftmax; phi < attention_activation::ActivationList::kCount; ++phi) {
    CAPTURE(phi);
    check(
        "tiled attention", inputs, {{shape, {}}, state, {shape, {}}, {shape, {}}, {shape, {}}, bias},
        [&](Workspace& w, const Tensors& t, const Tensors& y) {
          AttentionProblem problem = problem_of(t, phi);
          problem.bias = t[4].ref();
          const bool softmax = phi == attention_activation::kSoftmax;
          if (softmax) problem.divisor = 1;
          kernels.tiled.forward(w, problem, y[0].ref(), softmax ? y[1].ref() : TensorRef{});
          kernels.tiled.backward(w, problem, y[0].ref(), softmax ? y[1].ref() : TensorRef{}, t[3].ref(),
                                 {y[2].ref(), y[3].ref(), y[4].ref(), y[5].ref()});
          if (!softmax) engine_kernels(gpu()).fill(y[1].ref(), 0);
        },
        1e-2);
  }
  check(
      "linear attention", inputs, {{shape, {}}, square, {shape, {}}, {shape, {}}, {shape, {}}},
      [&](Workspace& w, const Tensors& t, const Tensors& y) {
        const AttentionProblem problem = problem_of(t, 0);
        kernels.linear.forward(w, problem, y[0].ref(), y[1].ref());
        kernels.linear.backward(w, problem, y[0].ref(), y[1].ref(), t[3].ref(),
                                {y[2].ref(), y[3].ref(), y[4].ref(), {}});
      },
      1e-2);
}

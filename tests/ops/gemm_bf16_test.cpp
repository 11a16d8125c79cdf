// Products of bf16 matrices: each against a naive product of the rounded operands in f64.
#include "ops/cpu/gemm_bf16.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "engine/bfloat16.h"
#include "engine/parallel.h"
#include "engine/philox.h"
#include "ops/cpu/gemm.h"
#include "tests/support/skip.h"

// oneDNN brings OpenMP's runtime; a build without it has neither.
extern "C" {
__attribute__((weak)) int omp_get_max_threads();
__attribute__((weak)) void omp_set_num_threads(int);
}

using namespace polygrad;
using polygrad::cpu::Gemm;
using polygrad::cpu::GemmPlan;

#define SKIP_WITHOUT_BF16_UNITS \
  if (!cpu::has_bf16_units()) return polygrad::testing::skip("no bf16 units: this CPU, or no oneDNN in this build")

namespace {

using Index = std::int64_t;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Uniform in [-1, 1), the same for every run.
std::vector<float> numbers(Index count, std::uint32_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (Index i = 0; i < count; ++i) {
    const auto words = philox::draw(seed, philox::Domain::scalar, static_cast<std::uint32_t>(i), 0, 0, 0);
    values[static_cast<std::size_t>(i)] = 2 * philox::uniform(words.w[0]) - 1;
  }
  return values;
}

std::vector<BFloat16> rounded(const std::vector<float>& values) {
  std::vector<BFloat16> result(values.size());
  round_to_bfloat16(values.data(), result.data(), static_cast<Index>(values.size()));
  return result;
}

double as_double(float value) { return static_cast<double>(value); }
double as_double(BFloat16 value) { return static_cast<double>(widen(value)); }

float quiet_nan(float) { return std::numeric_limits<float>::quiet_NaN(); }
BFloat16 quiet_nan(BFloat16) { return {0x7fc0}; }

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// One product with padded rows: the elements between the rows belong to somebody else.
struct Case {
  bool trans_a = false, trans_b = false;
  Index m, n, k;
  float alpha = 1, beta = 0;
  bool packed = false, bias = false;
  Index padding = 0;

  Index lda() const { return (trans_a ? m : k) + padding; }
  Index ldb() const { return (trans_b ? k : n) + padding; }
  Index ldc() const { return n + padding; }
};

void multiply(const Case& c, const BFloat16* a, const std::vector<float>& b, const float* bias, float* result) {
  if (c.packed) {
    std::vector<BFloat16> packed(static_cast<std::size_t>(c.k * c.n));
    cpu::pack_bf16(c.trans_b, c.n, c.k, b.data(), c.ldb(), packed.data());
    return cpu::gemm_packed_serial(c.m, c.n, c.k, a, c.lda(), packed.data(), bias, c.beta, result, c.ldc());
  }
  cpu::gemm_serial(c.trans_a, c.trans_b, c.m, c.n, c.k, c.alpha, a, c.lda(), rounded(b).data(), c.ldb(), c.beta, result,
                   c.ldc());
}

void multiply(const Case& c, const BFloat16* a, const std::vector<float>& b, const float* bias, BFloat16* result) {
  if (c.packed) {
    std::vector<BFloat16> packed(static_cast<std::size_t>(c.k * c.n));
    cpu::pack_bf16(c.trans_b, c.n, c.k, b.data(), c.ldb(), packed.data());
    return cpu::gemm_packed_serial(c.m, c.n, c.k, a, c.lda(), packed.data(), bias, result, c.ldc());
  }
  cpu::gemm_serial(c.trans_a, c.trans_b, c.m, c.n, c.k, a, c.lda(), rounded(b).data(), c.ldb(), bias, result, c.ldc());
}

// The largest error, in units of what the sums' rounding explains; infinity where a foreign element was written.
template <class Out>
double error_of(const Case& c) {
  const auto a = rounded(numbers(std::max(c.m, c.k) * c.lda() + 1, 1));
  const auto b = numbers(std::max(c.n, c.k) * c.ldb() + 1, 2), bias = numbers(c.n, 4);
  const auto b_rounded = rounded(b);
  const auto start = numbers(c.m * c.ldc() + 1, 3);
  std::vector<Out> before;
  if constexpr (std::is_same_v<Out, float>) {
    before = start;
  } else {
    before = rounded(start);
  }
  std::vector<Out> result = before;
  if (c.beta == 0) {
    for (Index i = 0; i < c.m; ++i) {
      for (Index j = 0; j < c.n; ++j) result[static_cast<std::size_t>(i * c.ldc() + j)] = quiet_nan(Out());
    }
  }
  multiply(c, a.data(), b, c.bias ? bias.data() : nullptr, result.data());
  double worst = 0;
  for (Index i = 0; i < c.m; ++i) {
    for (Index j = 0; j < c.ldc(); ++j) {
      const std::size_t at = static_cast<std::size_t>(i * c.ldc() + j);
      if (j >= c.n) {
        if (std::memcmp(&result[at], &before[at], sizeof(Out)) != 0) return kInfinity;
        continue;
      }
      double sum = 0;
      for (Index l = 0; l < c.k; ++l) {
        sum += as_double(a[static_cast<std::size_t>(c.trans_a ? l * c.lda() + i : i * c.lda() + l)]) *
               as_double(b_rounded[static_cast<std::size_t>(c.trans_b ? j * c.ldb() + l : l * c.ldb() + j)]);
      }
      double expected = static_cast<double>(c.alpha) * sum;
      if (c.bias) expected += static_cast<double>(bias[static_cast<std::size_t>(j)]);
      if (c.beta != 0) expected += static_cast<double>(c.beta) * as_double(before[at]);
      double allowed = 2e-6 * std::sqrt(static_cast<double>(c.k) + 1);
      if (std::is_same_v<Out, BFloat16>) allowed += std::abs(expected) * 0x1p-8;  // half a unit in the last place
      const double error = std::abs(as_double(result[at]) - expected) / allowed;
      worst = std::isnan(error) ? kInfinity : std::max(worst, error);
    }
  }
  return worst;
}

const Index kSizes[][3] = {{0, 3, 4},    {3, 0, 4},     {3, 4, 0},     {1, 1, 1},     {1, 7, 5},      {7, 1, 5},
                           {5, 7, 1},    {1, 1, 300},   {2, 3, 4},     {15, 17, 13},  {16, 16, 16},   {17, 33, 31},
                           {49, 49, 32}, {64, 63, 65},  {100, 1, 9},   {1, 100, 100}, {129, 130, 67}, {257, 64, 257},
                           {32, 64, 32}, {40, 200, 64}, {33, 192, 96}, {128, 32, 512}};

void check(const Case& c, double error) {
  CAPTURE(c.m);
  CAPTURE(c.n);
  CAPTURE(c.k);
  CAPTURE(c.trans_a);
  CAPTURE(c.trans_b);
  CAPTURE(c.alpha);
  CAPTURE(c.beta);
  CAPTURE(c.packed);
  CAPTURE(c.bias);
  CAPTURE(c.padding);
  CHECK(error <= 1);
}

// A batch of products, run by the plan.
struct Batch {
  bool trans_a, trans_b, sum;
  Index batch, m, n, k;
  bool packed = false, bias = false;
};

template <class Out>
std::vector<Out> run_batch(const Batch& p) {
  const auto a = rounded(numbers(p.batch * p.m * p.k, 4));
  const auto b_wide = numbers((p.packed ? 1 : p.batch) * p.k * p.n, 5), bias = numbers(p.n, 6);
  auto b = rounded(b_wide);
  std::vector<Out> c(static_cast<std::size_t>((p.sum ? 1 : p.batch) * p.m * p.n), quiet_nan(Out()));
  Gemm<BFloat16, Out> product;
  product.trans_a = p.trans_a;
  product.trans_b = p.trans_b;
  product.m = p.m;
  product.n = p.n;
  product.k = p.k;
  product.a = a.data();
  product.lda = p.trans_a ? p.m : p.k;
  product.ldb = p.trans_b ? p.k : p.n;
  if (p.packed) {
    cpu::pack_bf16(p.trans_b, p.n, p.k, b_wide.data(), product.ldb, b.data());
    product.packed_b = true;
  }
  product.b = b.data();
  product.c = c.data();
  product.ldc = p.n;
  if (p.bias) product.bias = bias.data();
  product.batch_dims = 1;
  product.batch_sizes[0] = p.batch;
  product.batch_a[0] = p.m * p.k;
  product.batch_b[0] = p.packed ? 0 : p.k * p.n;
  product.batch_c[0] = p.sum ? 0 : p.m * p.n;
  Workspace workspace;
  cpu::gemm(workspace, product);
  return c;
}

// The same in f64.
std::vector<double> naive_batch(const Batch& p) {
  const auto a = rounded(numbers(p.batch * p.m * p.k, 4));
  const auto b = rounded(numbers((p.packed ? 1 : p.batch) * p.k * p.n, 5));
  const auto bias = numbers(p.n, 6);
  std::vector<double> c(static_cast<std::size_t>((p.sum ? 1 : p.batch) * p.m * p.n), 0.0);
  for (Index s = 0; s < p.batch; ++s) {
    const BFloat16 *left = a.data() + s * p.m * p.k, *right = b.data() + (p.packed ? 0 : s * p.k * p.n);
    double* result = c.data() + (p.sum ? 0 : s * p.m * p.n);
    for (Index i = 0; i < p.m; ++i) {
      for (Index l = 0; l < p.k; ++l) {
        const double x = as_double(p.trans_a ? left[l * p.m + i] : left[i * p.k + l]);
        for (Index j = 0; j < p.n; ++j) {
          result[i * p.n + j] += x * as_double(p.trans_b ? right[j * p.k + l] : right[l * p.n + j]);
        }
      }
      if (p.bias && s + 1 == p.batch) {  // a test's own convention: once
        for (Index j = 0; j < p.n; ++j) result[i * p.n + j] += static_cast<double>(bias[static_cast<std::size_t>(j)]);
      }
    }
  }
  return c;
}

template <class Out>
double batch_error(const Batch& p) {
  const auto expected = naive_batch(p);
  const auto got = run_batch<Out>(p);
  if (got.size() != expected.size()) return kInfinity;
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    double allowed = 2e-6 * std::sqrt(static_cast<double>(p.k * (p.sum ? p.batch : 1)) + 1);
    if (std::is_same_v<Out, BFloat16>) allowed += std::abs(expected[i]) * 0x1p-8;
    const double error = std::abs(as_double(got[i]) - expected[i]) / allowed;
    worst = std::isnan(error) ? kInfinity : std::max(worst, error);
  }
  return worst;
}

}  // namespace

TEST_CASE("rows are rounded as single numbers are, ties to even, and widened exactly") {
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper < 0x10000u; ++upper) {  // every bf16, and what lies around it
    for (const std::uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const std::uint32_t bits = upper << 16 | lower;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      values.push_back(value);
    }
  }
  values.push_back(1.0f);  // a tail that is no multiple of a vector
  const std::vector<BFloat16> got = rounded(values);
  std::vector<float> wide(values.size());
  widen(got.data(), wide.data(), static_cast<Index>(got.size()));
  Index wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const BFloat16 single = to_bfloat16(values[i]);
    const float back = to_float(got[i]);
    bool right = single.bits == got[i].bits && std::memcmp(&wide[i], &back, sizeof back) == 0;
    if (std::isnan(values[i])) {
      right = right && std::isnan(back) && (got[i].bits & 0x40) != 0;
    } else {
      // No other bf16 is nearer; at equal distance the even one was taken.
      const BFloat16 down{static_cast<std::uint16_t>(got[i].bits - 1)}, up{static_cast<std::uint16_t>(got[i].bits + 1)};
      const double x = static_cast<double>(values[i]), distance = std::abs(x - static_cast<double>(back));
      for (const BFloat16 other : {down, up}) {
        const double away = std::abs(x - static_cast<double>(widen(other)));
        if (std::isfinite(back) && std::isfinite(widen(other))) {
          right = right && (distance < away || (distance == away && got[i].bits % 2 == 0) || back == widen(other));
        }
      }
      // Infinity from half a unit above the largest on.
      right = right && std::isfinite(back) == (std::abs(x) < 0x1.ffp127);
    }
    wrong += !right;
  }
  CHECK(wrong == 0);
}

TEST_CASE("round_row rounds as round_to_bfloat16, but for denormals") {
  for (const Index n : {1, 15, 16, 17, 300}) {
    std::vector<float> values = numbers(n, 7);
    for (Index i = 0; i < n; ++i) {
      const int shift = static_cast<int>(i % 200) - 100;
      values[static_cast<std::size_t>(i)] = std::ldexp(values[static_cast<std::size_t>(i)], shift);
    }
    values[0] = std::numeric_limits<float>::quiet_NaN();
    if (n > 3) {
      values[1] = std::numeric_limits<float>::infinity();
      values[2] = -std::numeric_limits<float>::max();
      values[3] = -0.0f;
    }
    std::vector<BFloat16> got(values.size());
    cpu::round_row(values.data(), got.data(), n);
    CHECK(same_bits(got, rounded(values)));
  }
  const float denormal = std::numeric_limits<float>::denorm_min();
  BFloat16 none{1};
  cpu::round_row(&denormal, &none, 1);
  CHECK(widen(none) == 0);
}

TEST_CASE("bf16 products agree with a naive loop, for every transpose, alpha, beta and padding") {
  SKIP_WITHOUT_BF16_UNITS;
  for (const auto& size : kSizes) {
    for (const bool trans_a : {false, true}) {
      for (const bool trans_b : {false, true}) {
        for (const Index padding : {0, 5}) {
          Case c{.trans_a = trans_a, .trans_b = trans_b, .m = size[0], .n = size[1], .k = size[2], .padding = padding};
          for (const auto& [alpha, beta] : {std::pair{1.0f, 0.0f}, {1.0f, 1.0f}, {-0.5f, 2.0f}, {0.125f, 0.0f}}) {
            c.alpha = alpha;
            c.beta = beta;
            check(c, error_of<float>(c));
          }
          c.alpha = 1;
          c.beta = 0;
          for (const bool bias : {false, true}) {
            c.bias = bias;
            check(c, error_of<BFloat16>(c));
          }
        }
      }
    }
  }
}

TEST_CASE("a packed right-hand matrix gives the same products") {
  SKIP_WITHOUT_BF16_UNITS;
  for (const auto& size : kSizes) {
    if (size[1] == 0 || size[2] == 0) continue;  // nothing to pack
    for (const bool trans_b : {false, true}) {
      for (const Index padding : {0, 3}) {
        for (const bool bias : {false, true}) {
          Case c{.trans_b = trans_b,
                 .m = size[0],
                 .n = size[1],
                 .k = size[2],
                 .packed = true,
                 .bias = bias,
                 .padding = padding};
          check(c, error_of<BFloat16>(c));
          check(c, error_of<float>(c));
          c.beta = 1;
          check(c, error_of<float>(c));
        }
      }
    }
  }
}

TEST_CASE("a plan with a packed matrix cuts rows alone") {
  for (const Index batch : {1, 5}) {
    for (const Index m : {0, 1, 31, 32, 47, 48, 49, 257, 1000, 8224, 100000}) {
      const GemmPlan plan = cpu::plan_gemm_packed(batch, m, 576, 192);
      CAPTURE(batch);
      CAPTURE(m);
      const Index last = m - (plan.row_blocks - 1) * plan.row_block;
      CHECK((plan.col_blocks == 1 && plan.col_block == 576 && plan.k_slices == 1 && plan.k_slice == 192));
      CHECK((plan.row_blocks >= 1 && plan.row_block <= 272));
      CHECK((plan.row_blocks == 1 || (last >= 16 && last <= plan.row_block && plan.row_block >= 32)));
    }
  }
  CHECK(cpu::plan_gemm_packed(1, 8224, 576, 192).row_blocks == 33);
  CHECK(cpu::plan_gemm_packed(1, 257, 576, 192).row_blocks == 6);  // one image still keeps several threads busy
}

TEST_CASE("batches, sums over a batch, and slices of k, by the plan") {
  SKIP_WITHOUT_BF16_UNITS;
  for (const bool trans_a : {false, true}) {
    for (const bool sum : {false, true}) {
      for (const Batch p : {Batch{trans_a, false, sum, 3, 40, 50, 60},
                            {trans_a, true, sum, 2, 300, 70, 33},
                            {trans_a, false, sum, 1, 64, 48, 4000},
                            {trans_a, false, sum, 0, 3, 4, 5}}) {
        CAPTURE(p.batch);
        CAPTURE(p.m);
        CAPTURE(p.k);
        CAPTURE(p.sum);
        CHECK(batch_error<float>(p) <= 1);
        CHECK(batch_error<BFloat16>(p) <= 1);
      }
    }
  }
  // A bias belongs to a bf16 result: added to the sum in f32, also where that is formed in slices.
  CHECK(batch_error<BFloat16>({false, true, false, 1, 64, 48, 4000, false, true}) <= 1);
  CHECK(batch_error<BFloat16>({false, true, false, 1, 600, 96, 64, false, true}) <= 1);
  CHECK(batch_error<BFloat16>({false, true, false, 1, 600, 96, 64, true, true}) <= 1);
  CHECK(batch_error<float>({false, true, false, 1, 600, 96, 64, true}) <= 1);
}

TEST_CASE("the epilogue sees each element of a bf16 result once, finished") {
  SKIP_WITHOUT_BF16_UNITS;
  for (const Index k : {8, 4096}) {  // one call, and slices
    const Index m = 300, n = 210;
    const std::vector<BFloat16> a(static_cast<std::size_t>(m * k), {0x3f80}),
        b(static_cast<std::size_t>(k * n), {0x3f80});
    std::vector<BFloat16> c(static_cast<std::size_t>(m * n), {0x7fc0});
    Gemm<BFloat16, BFloat16> product;
    product.m = m;
    product.n = n;
    product.k = k;
    product.a = a.data();
    product.b = b.data();
    product.c = c.data();
    product.lda = k;
    product.ldb = n;
    product.ldc = n;
    std::vector<int> seen(static_cast<std::size_t>(m * n));
    const auto epilogue = [&](Index offset, Index rows, Index cols, Index col) {
      for (Index i = 0; i < rows; ++i) {
        for (Index j = 0; j < cols; ++j) {
          const std::size_t at = static_cast<std::size_t>(offset + i * n + j);
          seen[at] += widen(c[at]) == static_cast<float>(k) && (offset + i * n + j) % n == col + j ? 1 : 100;
        }
      }
    };
    Workspace workspace;
    cpu::gemm(workspace, product, epilogue);
    bool right = true;
    for (const int times : seen) right = right && times == 1;
    CHECK(right);
  }
}

TEST_CASE("bf16: the same bits for 1, 2, 3 and 16 threads") {
  SKIP_WITHOUT_BF16_UNITS;
  const Batch products[] = {{false, false, false, 1, 2000, 96, 64}, {true, false, false, 1, 192, 192, 8224},
                            {false, true, false, 1, 100, 700, 300}, {false, true, false, 1, 1000, 192, 64, true, true},
                            {false, true, false, 5, 257, 64, 257},  {true, false, true, 7, 33, 40, 50}};
  for (const Batch& p : products) {
    const auto run = [&](auto zero, int threads) {
      const NumThreadsGuard guard(threads);
      return run_batch<decltype(zero)>(p);
    };
    const auto wide = run(float(), 1);
    const auto narrow = run(BFloat16(), 1);
    for (const int threads : {2, 3, 16}) {
      CAPTURE(threads);
      CHECK(same_bits(wide, run(float(), threads)));
      CHECK(same_bits(narrow, run(BFloat16(), threads)));
    }
  }
}

TEST_CASE("more shapes than a thread keeps primitives for, from several threads at once") {
  SKIP_WITHOUT_BF16_UNITS;
  const auto one_thread = [](int seed) {
    double worst = 0;
    for (int turn = 0; turn < 2; ++turn) {  // the second meets what is left of the first
      for (Index m = 1; m <= 20; ++m) {
        for (Index n = 1; n <= 16; ++n) {
          worst = std::max(worst, error_of<float>({.m = m, .n = (n + seed) % 16 + 1, .k = 3}));
        }
      }
    }
    return worst;
  };
  std::vector<double> worst(3, kInfinity);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([&, i] { worst[static_cast<std::size_t>(i)] = one_thread(i); });
  for (std::thread& thread : threads) thread.join();
  for (const double error : worst) CHECK(error <= 1);
}

TEST_CASE("bf16: the host's OpenMP settings stay what they were, and do not matter") {
  SKIP_WITHOUT_BF16_UNITS;
  REQUIRE(omp_set_num_threads != nullptr);
  std::vector<float> first;
  for (const int threads : {1, 2, 5}) {
    // A thread of its own: its primitives are made under this setting.
    std::thread host([&] {
      omp_set_num_threads(threads);
      const NumThreadsGuard guard(1);
      const auto result = run_batch<float>({false, false, false, 1, 300, 200, 700});
      CHECK(omp_get_max_threads() == threads);
      if (first.empty()) first = result;
      CHECK(same_bits(first, result));
    });
    host.join();
  }
}

TEST_CASE("bf16: a NaN or an infinity reaches the results that it belongs to, and no other") {
  SKIP_WITHOUT_BF16_UNITS;
  const Index m = 20, n = 40, k = 33;
  std::vector<float> a(static_cast<std::size_t>(m * k), 1.0f);
  const auto b = rounded(std::vector<float>(static_cast<std::size_t>(k * n), 2.0f));
  a[static_cast<std::size_t>(3 * k + 7)] = std::numeric_limits<float>::quiet_NaN();
  a[static_cast<std::size_t>(5 * k + 32)] = std::numeric_limits<float>::infinity();
  std::vector<float> c(static_cast<std::size_t>(m * n), 9.0f);
  cpu::gemm_serial(false, false, m, n, k, 1.0f, rounded(a).data(), k, b.data(), n, 0.0f, c.data(), n);
  bool right = true;
  for (Index i = 0; i < m; ++i) {
    for (Index j = 0; j < n; ++j) {
      const float value = c[static_cast<std::size_t>(i * n + j)];
      right = right && (i == 3 ? std::isnan(value) : i == 5 ? std::isinf(value) : value == 2.0f * k);
    }
  }
  CHECK(right);
}

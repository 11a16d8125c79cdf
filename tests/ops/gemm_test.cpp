// The product beneath all others: plan, providers, blocks, and the promise of equal bits for any number of threads.
#include "ops/cpu/gemm.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/error.h"
#include "engine/parallel.h"
#include "engine/philox.h"
#include "ops/gemm_provider.h"
#include "ops/kernels/dispatch.h"

// oneDNN brings OpenMP's runtime; a build without it has neither.
extern "C" {
__attribute__((weak)) int omp_get_max_threads();
__attribute__((weak)) void omp_set_num_threads(int);
}

using namespace polygrad;
using polygrad::cpu::Gemm;
using polygrad::cpu::GemmPlan;
using polygrad::cpu::plan_gemm;

namespace {

using Index = std::int64_t;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<GemmProvider> providers() {
  std::vector<GemmProvider> list = {GemmProvider::eigen};
  if (has_gemm_provider(GemmProvider::onednn)) list.push_back(GemmProvider::onednn);
  return list;
}

class ProviderGuard {
 public:
  explicit ProviderGuard(GemmProvider provider) : previous_(gemm_provider()) { set_gemm_provider(provider); }
  ~ProviderGuard() { set_gemm_provider(previous_); }

 private:
  GemmProvider previous_;
};

// Uniform in [-1, 1), the same for every run.
template <class T>
std::vector<T> numbers(Index count, std::uint32_t seed) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (Index i = 0; i < count; ++i) {
    const auto words = philox::draw(seed, philox::Domain::scalar, static_cast<std::uint32_t>(i), 0, 0, 0);
    values[static_cast<std::size_t>(i)] = static_cast<T>(2 * philox::uniform(words.w[0]) - 1);
  }
  return values;
}

// One product with padded rows: the elements between the rows belong to somebody else.
template <class T>
struct Case {
  bool trans_a, trans_b;
  Index m, n, k;
  T alpha, beta;
  Index padding;

  Index lda() const { return (trans_a ? m : k) + padding + 1; }
  Index ldb() const { return (trans_b ? k : n) + padding + 1; }
  Index ldc() const { return n + padding + 1; }
};

template <class T>
double check_serial(const Case<T>& c) {
  const std::vector<T> a = numbers<T>(std::max(c.m, c.k) * c.lda() + 1, 1),
                       b = numbers<T>(std::max(c.n, c.k) * c.ldb() + 1, 2);
  const std::vector<T> before = numbers<T>(c.m * c.ldc() + 1, 3);
  std::vector<T> result = before;
  if (c.beta == T(0)) {
    for (Index i = 0; i < c.m; ++i) {
      for (Index j = 0; j < c.n; ++j) result[static_cast<std::size_t>(i * c.ldc() + j)] = static_cast<T>(kNaN);
    }
  }
  cpu::gemm_serial(c.trans_a, c.trans_b, c.m, c.n, c.k, c.alpha, a.data(), c.lda(), b.data(), c.ldb(), c.beta,
                   result.data(), c.ldc());
  double worst = 0;
  for (Index i = 0; i < c.m; ++i) {
    for (Index j = 0; j < c.ldc(); ++j) {
      const std::size_t at = static_cast<std::size_t>(i * c.ldc() + j);
      if (j >= c.n) {
        if (result[at] != before[at]) return std::numeric_limits<double>::infinity();
        continue;
      }
      double sum = 0;
      for (Index l = 0; l < c.k; ++l) {
        sum += static_cast<double>(a[static_cast<std::size_t>(c.trans_a ? l * c.lda() + i : i * c.lda() + l)]) *
               static_cast<double>(b[static_cast<std::size_t>(c.trans_b ? j * c.ldb() + l : l * c.ldb() + j)]);
      }
      const double expected = c.alpha * sum + (c.beta == T(0) ? 0.0 : static_cast<double>(c.beta) * before[at]);
      const double error = std::abs(static_cast<double>(result[at]) - expected);
      worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
    }
  }
  return worst / std::sqrt(static_cast<double>(c.k) + 1);
}

template <class T>
void check_all_shapes(double tolerance) {
  const Index sizes[][3] = {{0, 3, 4},    {3, 0, 4},    {3, 4, 0},   {1, 1, 1},     {1, 7, 5},      {7, 1, 5},
                            {5, 7, 1},    {1, 1, 300},  {2, 3, 4},   {15, 17, 13},  {16, 16, 16},   {17, 33, 31},
                            {49, 49, 32}, {64, 63, 65}, {100, 1, 9}, {1, 100, 100}, {129, 130, 67}, {257, 64, 257}};
  for (const auto& size : sizes) {
    for (const bool trans_a : {false, true}) {
      for (const bool trans_b : {false, true}) {
        for (const Index padding : {Index{-1}, Index{4}}) {
          for (const auto& [alpha, beta] : {std::pair{1.0, 0.0}, {1.0, 1.0}, {-0.5, 2.0}, {0.125, 0.0}}) {
            const Case<T> c{trans_a, trans_b, size[0], size[1], size[2], static_cast<T>(alpha), static_cast<T>(beta),
                            padding};
            CAPTURE(c.m);
            CAPTURE(c.n);
            CAPTURE(c.k);
            CAPTURE(trans_a);
            CAPTURE(trans_b);
            CAPTURE(padding);
            CAPTURE(alpha);
            CAPTURE(beta);
            CHECK(check_serial(c) <= tolerance);
          }
        }
      }
    }
  }
}

// A batch of products, run by the plan.
template <class T>
std::vector<T> run_batch(bool trans_a, bool trans_b, Index batch, Index m, Index n, Index k, bool sum, T beta,
                         T first) {
  const std::vector<T> a = numbers<T>(batch * m * k, 4), b = numbers<T>(batch * k * n, 5);
  std::vector<T> c(static_cast<std::size_t>((sum ? 1 : batch) * m * n), first);
  Gemm<T> product;
  product.trans_a = trans_a;
  product.trans_b = trans_b;
  product.m = m;
  product.n = n;
  product.k = k;
  product.a = a.data();
  product.b = b.data();
  product.c = c.data();
  product.lda = trans_a ? m : k;
  product.ldb = trans_b ? k : n;
  product.ldc = n;
  product.beta = beta;
  product.batch_dims = 1;
  product.batch_sizes[0] = batch;
  product.batch_a[0] = m * k;
  product.batch_b[0] = k * n;
  product.batch_c[0] = sum ? 0 : m * n;
  Workspace workspace;
  cpu::gemm(workspace, product);
  return c;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace

TEST_CASE("a plan covers the product, with no small remainder among the rows") {
  for (const Index batch : {1, 3, 96}) {
    for (const Index m : {0, 1, 15, 16, 255, 256, 257, 271, 272, 273, 512, 527, 528, 529, 8224, 100000}) {
      for (const Index n : {0, 1, 10, 95, 96, 192, 200, 576, 768, 2048, 3072}) {
        for (const Index k : {0, 1, 192, 511, 512, 1024, 8224, 65536}) {
          const GemmPlan plan = plan_gemm(batch, m, n, k);
          CAPTURE(batch);
          CAPTURE(m);
          CAPTURE(n);
          CAPTURE(k);
          const Index last_rows = m - (plan.row_blocks - 1) * plan.row_block;
          const Index last_cols = n - (plan.col_blocks - 1) * plan.col_block;
          const Index last_slice = k - (plan.k_slices - 1) * plan.k_slice;
          REQUIRE((plan.row_blocks >= 1 && plan.col_blocks >= 1 && plan.k_slices >= 1));
          CHECK((last_rows <= 272 && (plan.row_blocks == 1 || last_rows >= 16)));
          CHECK((plan.row_block <= 272 && (plan.row_blocks == 1 || plan.row_block >= 128)));
          CHECK((last_cols <= plan.col_block && (plan.col_blocks == 1 || last_cols >= 1)));
          CHECK((last_slice <= plan.k_slice && (plan.k_slices == 1 || last_slice >= 1)));
          CHECK((plan.k_slices == 1 || plan.k_slice >= 512));
        }
      }
    }
  }
}

TEST_CASE("plans of the products of a vision transformer") {
  const auto tasks = [](const GemmPlan& plan) { return plan.row_blocks * plan.col_blocks * plan.k_slices; };
  SUBCASE("tokens times a weight: blocks of 256 rows, whole width") {
    const GemmPlan plan = plan_gemm(1, 8224, 576, 192);
    CHECK(plan.row_block == 256);
    CHECK(plan.row_blocks == 33);
    CHECK(plan.col_blocks == 1);
    CHECK(plan.k_slices == 1);
  }
  SUBCASE("the gradient of a weight: slices of k") {
    const GemmPlan plan = plan_gemm(1, 192, 192, 8224);
    CHECK(plan.row_blocks == 1);
    CHECK(plan.col_blocks == 1);
    CHECK(plan.k_slices == 16);
  }
  SUBCASE("there are about 32 tasks") {
    CHECK(tasks(plan_gemm(1, 576, 192, 8224)) >= 24);
    CHECK(tasks(plan_gemm(1, 2048, 2048, 2048)) >= 32);
    CHECK(tasks(plan_gemm(1, 32, 3072, 768)) >= 16);
  }
  SUBCASE("a small product is one task") { CHECK(tasks(plan_gemm(1, 32, 200, 192)) == 1); }
  SUBCASE("a batch is not cut") { CHECK(tasks(plan_gemm(96, 257, 257, 64)) == 1); }
}

TEST_CASE("both providers agree with a naive loop, for every transpose, alpha, beta and padding") {
  for (const GemmProvider provider : providers()) {
    CAPTURE(to_string(provider));
    const ProviderGuard guard(provider);
    check_all_shapes<float>(2e-6);
    check_all_shapes<double>(1e-14);
  }
}

TEST_CASE("a batch by its plan equals its products one by one") {
  for (const GemmProvider provider : providers()) {
    CAPTURE(to_string(provider));
    const ProviderGuard guard(provider);
    const Index batch = 3, m = 530, n = 200, k = 1100;
    const auto a = numbers<double>(batch * m * k, 4), b = numbers<double>(batch * k * n, 5);
    for (const bool sum : {false, true}) {
      for (const double beta : {0.0, 0.5}) {
        // The naive result in f64 by the provider that always serves f64, block by block.
        std::vector<double> expected(static_cast<std::size_t>((sum ? 1 : batch) * m * n), 2.0);
        for (Index i = 0; i < batch; ++i) {
          cpu::gemm_serial(false, false, m, n, k, 1.0, a.data() + i * m * k, k, b.data() + i * k * n, n,
                           sum && i > 0 ? 1.0 : beta, expected.data() + (sum ? 0 : i * m * n), n);
        }
        const auto f64 = run_batch<double>(false, false, batch, m, n, k, sum, beta, 2.0);
        const auto f32 = run_batch<float>(false, false, batch, m, n, k, sum, static_cast<float>(beta), 2.0f);
        REQUIRE(f64.size() == expected.size());
        double worst64 = 0, worst32 = 0;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          worst64 = std::max(worst64, std::abs(f64[i] - expected[i]));
          worst32 = std::max(worst32, std::abs(static_cast<double>(f32[i]) - expected[i]));
        }
        CHECK(worst64 <= 1e-11);
        CHECK(worst32 <= 2e-4);
      }
    }
  }
}

TEST_CASE("a sum over an empty batch is beta times C") {
  CHECK(run_batch<float>(false, false, 0, 3, 4, 5, true, 0.5f, 2.0f) == std::vector<float>(12, 1.0f));
  CHECK(run_batch<float>(false, false, 0, 3, 4, 5, true, 0.0f, NAN) == std::vector<float>(12, 0.0f));
}

TEST_CASE("the epilogue sees each element of C once, finished") {
  for (const Index k : {8, 4096}) {  // one slice, and several
    const Index m = 300, n = 210;
    const std::vector<float> a(static_cast<std::size_t>(m * k), 1.0f), b(static_cast<std::size_t>(k * n), 1.0f);
    std::vector<float> c(static_cast<std::size_t>(m * n), 7.0f);
    Gemm<float> product;
    product.m = m;
    product.n = n;
    product.k = k;
    product.a = a.data();
    product.b = b.data();
    product.c = c.data();
    product.lda = k;
    product.ldb = n;
    product.ldc = n;
    const auto epilogue = [&](Index offset, Index rows, Index cols, Index col) {
      for (Index i = 0; i < rows; ++i) {
        for (Index j = 0; j < cols; ++j) c[static_cast<std::size_t>(offset + i * n + j)] += static_cast<float>(col + j);
      }
    };
    Workspace workspace;
    cpu::gemm(workspace, product, epilogue);
    bool right = true;
    for (Index i = 0; i < m * n; ++i) right = right && c[static_cast<std::size_t>(i)] == static_cast<float>(k + i % n);
    CHECK(right);
  }
}

TEST_CASE("the same bits for 1, 2, 3 and 16 threads, in both providers") {
  const Index shapes[][4] = {
      {1, 8224, 96, 64}, {1, 192, 192, 8224}, {1, 100, 700, 300}, {5, 257, 64, 257}, {7, 33, 40, 50}};
  for (const GemmProvider provider : providers()) {
    CAPTURE(to_string(provider));
    const ProviderGuard guard(provider);
    for (const auto& [batch, m, n, k] : shapes) {
      for (const bool trans_a : {false, true}) {
        const auto run = [&](int threads) {
          const NumThreadsGuard guard_threads(threads);
          return run_batch<float>(trans_a, false, batch, m, n, k, batch == 7, 0.0f, NAN);
        };
        const std::vector<float> one = run(1);
        for (const int threads : {2, 3, 16}) {
          CAPTURE(threads);
          CHECK(same_bits(one, run(threads)));
        }
      }
    }
    const auto run64 = [](int threads) {
      const NumThreadsGuard guard_threads(threads);
      return run_batch<double>(true, false, 1, 192, 100, 4000, false, 0.0, kNaN);
    };
    CHECK(same_bits(run64(1), run64(16)));
  }
}

TEST_CASE("the host's OpenMP settings stay what they were, and do not matter") {
  if (!has_gemm_provider(GemmProvider::onednn)) return;
  REQUIRE(omp_set_num_threads != nullptr);
  const ProviderGuard guard(GemmProvider::onednn);
  const int before = omp_get_max_threads();
  std::vector<float> first;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    const auto result = run_batch<float>(false, false, 1, 300, 200, 700, false, 0.0f, NAN);
    CHECK(omp_get_max_threads() == threads);
    if (first.empty()) first = result;
    CHECK(same_bits(first, result));
  }
  omp_set_num_threads(before);
}

TEST_CASE("choosing a provider") {
  CHECK(std::string(to_string(GemmProvider::onednn)) == "onednn");
  CHECK(std::string(to_string(GemmProvider::eigen)) == "eigen");
  const ProviderGuard guard(GemmProvider::eigen);
  CHECK(gemm_provider() == GemmProvider::eigen);
  if (has_gemm_provider(GemmProvider::onednn)) {
    set_gemm_provider(GemmProvider::onednn);
    CHECK(gemm_provider() == GemmProvider::onednn);
  } else {
    CHECK_THROWS_WITH_AS(set_gemm_provider(GemmProvider::onednn),
                         "[set_gemm_provider] this build has no gemm provider onednn; expected eigen; configure with "
                         "-DPOLYGRAD_ONEDNN=ON",
                         ValueError);
  }
}

TEST_CASE("this machine has the instructions of its own build") { CHECK_NOTHROW(check_cpu_instructions()); }

TEST_CASE("a missing kernel says which op and device") {
  CHECK_NOTHROW(require_kernel("conv", true, DeviceType::cuda));
  CHECK_THROWS_WITH_AS(require_kernel("conv", false, DeviceType::cuda),
                       "[conv] no CUDA kernel for this operation; move its inputs to another device",
                       NotImplementedError);
}

// What the profiler says of matrix products: how many operations, under whose name, on any number of threads.
#include "engine/profile.h"

#include <doctest/doctest.h>

#include <thread>

#include "engine/autograd.h"
#include "engine/factory.h"
#include "engine/parallel.h"
#include "ops/attention.h"
#include "ops/matmul.h"
#include "ops/reduce.h"

using namespace polygrad;

namespace {

ProfileRow row_of(const std::vector<ProfileRow>& rows, const std::string& phase, const std::string& op) {
  for (const ProfileRow& row : rows) {
    if (row.phase == phase && row.op == op) return row;
  }
  return {};
}

Tensor leaf(const Shape& shape, std::uint64_t seed) {
  Generator generator(seed);
  return randn(shape, {.requires_grad = true, .generator = &generator});
}

}  // namespace

TEST_CASE("the operations of products are counted exactly, whatever the threads") {
  constexpr std::int64_t m = 300, k = 200, n = 180;
  for (const int threads : {1, 2, 3}) {
    CAPTURE(threads);
    const NumThreadsGuard guard(threads);
    const Tensor a = leaf({m, k}, 1), b = leaf({k, n}, 2), weight = leaf({n, k}, 3);
    Profiler profiler;
    sum(matmul(a, b)).backward();
    sum(linear(a, weight, Tensor())).backward();
    const std::vector<ProfileRow> rows = profiler.rows();
    const double product = 2.0 * m * k * n;
    for (const char* op : {"matmul", "linear"}) {
      CAPTURE(op);
      CHECK(row_of(rows, "forward", op).operations == product);
      CHECK(row_of(rows, "backward", op).operations == 2 * product);
      for (const char* phase : {"forward", "backward"}) {
        const ProfileRow row = row_of(rows, phase, op);
        CHECK(row.product_nanoseconds > 0);
        CHECK(row.product_nanoseconds <= row.parallel_nanoseconds);
        CHECK(row.parallel_nanoseconds <= threads * row.nanoseconds);
      }
    }
    CHECK(row_of(rows, "forward", "sum").operations == 0);
    CHECK(row_of(rows, "forward", "sum").bytes == 4.0 * (m * n + 1) * 2);
  }
}

TEST_CASE("attention's operations are counted as they are computed, recomputation included") {
  constexpr std::int64_t batch = 2, tokens = 40, heads = 3, head_dim = 16;
  const Tensor qkv = leaf({batch, tokens, 3, heads, head_dim}, 1);
  AttentionParams params;
  params.phi = parse_activation("x3");
  params.path = AttentionPath::tiled;
  params.divisor = 6;
  Profiler profiler;
  sum(attention_qkv(qkv, params)).backward();
  const std::vector<ProfileRow> rows = profiler.rows();
  const double product = 2.0 * batch * heads * tokens * tokens * head_dim;
  CHECK(row_of(rows, "forward", "attention_qkv").operations == 2 * product);  // scores, values
  // Four products of the gradient, and the scores once more.
  CHECK(row_of(rows, "backward", "attention_qkv").operations == 5 * product);
}

TEST_CASE("two host threads on one pool: each is told its own products") {
  double counted[2] = {0, 0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([i, &counted] {
      const NumThreadsGuard guard(3);
      const std::int64_t rows = i == 0 ? 600 : 900;
      const Tensor a = leaf({rows, 128}, 1), b = leaf({128, 256}, 2);
      Profiler profiler;
      for (int repeat = 0; repeat < 20; ++repeat) {
        const NoGradGuard no_grad;
        matmul(a, b);
      }
      for (const ProfileRow& row : profiler.rows()) counted[i] += row.operations;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(counted[0] == 20 * 2.0 * 600 * 128 * 256);
  CHECK(counted[1] == 20 * 2.0 * 900 * 128 * 256);
}

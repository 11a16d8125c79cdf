// The ladder of attention: O = phi(Q K^T / sqrt(d)) V / c with phi(s) = s^3, the forward alone, in plain C++ up to the
// last rung. 4 sequences, 2 heads, 1024 tokens, width 32. Read next: ops/cpu/attention_tiled.cpp.
#include <cmath>

#include "apps/bench/ladder.h"
#include "engine/autograd.h"
#include "engine/factory.h"
#include "engine/generator.h"
#include "engine/parallel.h"
#include "ops/attention.h"
#include "ops/cpu/gemm.h"
#include "ops/view.h"

namespace polygrad::bench {
namespace {

constexpr std::int64_t kHeads = 8, kTokens = 1024, kWidth = 32;  // heads: of all sequences
constexpr std::int64_t kHead = kTokens * kWidth;                 // elements of a head's q, k, v or output
constexpr float kDivisor = 32;                                   // sqrt(kTokens)
const float kScale = 1.0f / std::sqrt(static_cast<float>(kWidth));

float phi(float s) { return s * s * s * (1 / kDivisor); }

// All heads of one kind, (kHeads, kTokens, kWidth), each contiguous.
struct Problem {
  std::vector<float> q, k, v;
};

Problem make_problem() {
  Generator generator(1);
  const auto random = [&] { return randn({kHeads * kHead}, {.generator = &generator}).to_vector<float>(); };
  Problem problem;
  problem.q = random();
  problem.k = random();
  problem.v = random();
  return problem;
}

// --- rungs: one head each, q, k, v and o (kTokens, kWidth) -----------------------------------------------------------

// The formula, entry by entry: all of S and P in memory, and the innermost loop of the second product jumps from row to
// row of V.
void as_written(const float* q, const float* k, const float* v, float* o) {
  std::vector<float> p(static_cast<std::size_t>(kTokens * kTokens));
  for (std::int64_t i = 0; i < kTokens; ++i) {
    for (std::int64_t j = 0; j < kTokens; ++j) {
      float s = 0;
      for (std::int64_t e = 0; e < kWidth; ++e) s += q[i * kWidth + e] * k[j * kWidth + e];
      p[static_cast<std::size_t>(i * kTokens + j)] = phi(s * kScale);
    }
  }
  for (std::int64_t i = 0; i < kTokens; ++i) {
    for (std::int64_t e = 0; e < kWidth; ++e) {
      float sum = 0;
      for (std::int64_t j = 0; j < kTokens; ++j)
        sum += p[static_cast<std::size_t>(i * kTokens + j)] * v[j * kWidth + e];
      o[i * kWidth + e] = sum;
    }
  }
}

// One row of P at a time, used where it is made; the innermost loops run along memory, over sums that do not wait for
// each other, so that the compiler can take several at once. K is turned first for that.
void along_memory(const float* q, const float* k, const float* v, float* o) {
  std::vector<float> turned(static_cast<std::size_t>(kHead)), row(static_cast<std::size_t>(kTokens));
  float* kt = turned.data();
  float* p = row.data();
  for (std::int64_t j = 0; j < kTokens; ++j) {
    for (std::int64_t e = 0; e < kWidth; ++e) kt[e * kTokens + j] = k[j * kWidth + e];
  }
  for (std::int64_t i = 0; i < kTokens; ++i) {
    for (std::int64_t j = 0; j < kTokens; ++j) p[j] = 0;
    for (std::int64_t e = 0; e < kWidth; ++e) {
      const float factor = q[i * kWidth + e] * kScale;
      for (std::int64_t j = 0; j < kTokens; ++j) p[j] += factor * kt[e * kTokens + j];
    }
    for (std::int64_t j = 0; j < kTokens; ++j) p[j] = phi(p[j]);
    float* out = o + i * kWidth;
    for (std::int64_t e = 0; e < kWidth; ++e) out[e] = 0;
    for (std::int64_t j = 0; j < kTokens; ++j) {
      for (std::int64_t e = 0; e < kWidth; ++e) out[e] += p[j] * v[j * kWidth + e];
    }
  }
}

// `rows` rows of a head against all keys in tiles of `keys`: product, phi, product, one tile of P at a time.
void tiles(const float* q, const float* k, const float* v, float* o, std::int64_t rows, std::int64_t keys) {
  std::vector<float> tile(static_cast<std::size_t>(rows * keys));
  float* p = tile.data();
  for (std::int64_t j = 0; j < kTokens; j += keys) {
    cpu::gemm_serial(false, true, rows, keys, kWidth, kScale, q, kWidth, k + j * kWidth, kWidth, 0.0f, p, keys);
    for (std::int64_t i = 0; i < rows * keys; ++i) p[i] = phi(p[i]);
    const float add = j == 0 ? 0.0f : 1.0f;
    cpu::gemm_serial(false, false, rows, kWidth, keys, 1.0f, p, keys, v + j * kWidth, kWidth, add, o, kWidth);
  }
}

void in_memory(const float* q, const float* k, const float* v, float* o) { tiles(q, k, v, o, kTokens, kTokens); }

void in_tiles(const float* q, const float* k, const float* v, float* o) {
  constexpr std::int64_t kRows = 128, kKeys = 512;
  for (std::int64_t i = 0; i < kHead; i += kRows * kWidth) tiles(q + i, k, v, o + i, kRows, kKeys);
}

}  // namespace

std::vector<std::string> ladder_attention(const Common& common) {
  const Problem problem = make_problem();
  using Head = void (*)(const float* q, const float* k, const float* v, float* o);
  std::vector<float> out(static_cast<std::size_t>(kHeads * kHead));
  const auto result = [&] { return out; };
  const auto rung = [&](std::string name, Head head, bool threads) -> Rung {
    const auto run = [&, head, threads] {
      const auto heads = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t h = begin * kHead; h < end * kHead; h += kHead) {
          head(problem.q.data() + h, problem.k.data() + h, problem.v.data() + h, out.data() + h);
        }
      };
      if (threads) parallel_for(0, kHeads, 1, heads);
      if (!threads) heads(0, kHeads);
    };
    return {std::move(name), run, result};
  };

  const auto tensor = [](const std::vector<float>& x) { return Tensor::from_vector(x, {4, 2, kTokens, kWidth}); };
  const Tensor q = tensor(problem.q), k = tensor(problem.k), v = tensor(problem.v);
  AttentionParams params;
  params.phi = parse_activation("x3");
  params.divisor = static_cast<double>(kDivisor);
  params.path = AttentionPath::tiled;
  Tensor y;  // (B, N, H d)
  const auto op = [&] {
    const NoGradGuard no_grad;
    y = attention(q, k, v, params);
  };
  const auto op_result = [&] {
    return permute(reshape(y, {4, kTokens, 2, kWidth}), {0, 2, 1, 3}).contiguous().to_vector<float>();
  };

  return climb("attention",
               {rung("the formula as it stands, one thread", as_written, false),
                rung("the heads shared among the threads", as_written, true),
                rung("one row of P at a time, loops along memory", along_memory, true),
                rung("products by the library, all of P in memory", in_memory, true),
                rung("tiles of 128 rows x 512 keys: P stays in the cache", in_tiles, true),
                {"the op: phi in vector registers, scratch memory kept, tasks by shape", op, op_result}},
               4.0 * kHeads * kTokens * kTokens * kWidth, common);
}

}  // namespace polygrad::bench

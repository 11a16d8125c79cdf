#include "ops/cpu/attention_block.h"

#include <algorithm>

#include "engine/philox.h"
#include "ops/cpu/gemm.h"
#include "ops/kernels/attention_activation.h"

namespace polygrad::cpu::attention {

namespace phi_list = polygrad::attention_activation;

// --- masks ----------------------------------------------------------------------------------------------------------

namespace {

// Columns are handled in stretches of this many, whose flags and factors lie on the stack.
constexpr std::int64_t kStretch = 512;

bool hides_pairs(const AttentionProblem& p) {
  return p.key_mask.present() || p.query_mask.present() || p.regions.present();
}

const std::int32_t* regions_of(const AttentionProblem& p, std::int64_t b) {
  return p.regions.as<const std::int32_t>() + (b % p.regions.sizes[0]) * p.regions.sizes[1];
}

// flags[j] = 1 where pair (query, key + j) is allowed.
void allowed_pairs(const AttentionProblem& p, std::int64_t b, std::int64_t query, std::int64_t key, std::int64_t count,
                   std::uint8_t* flags) {
  const bool* query_mask = query_mask_of(p, b);
  const bool* key_mask = key_mask_of(p, b);
  if (query_mask != nullptr && !query_mask[query]) {
    for (std::int64_t j = 0; j < count; ++j) flags[j] = 0;
    return;
  }
  if (key_mask != nullptr) {
    for (std::int64_t j = 0; j < count; ++j) flags[j] = key_mask[key + j];
  } else {
    for (std::int64_t j = 0; j < count; ++j) flags[j] = 1;
  }
  if (p.regions.present()) {
    const std::int32_t* ids = regions_of(p, b);
    const std::int32_t own = ids[query];
    for (std::int64_t j = 0; j < count; ++j) flags[j] &= static_cast<std::uint8_t>(ids[key + j] == own);
  }
}

template <class T>
void keep_where(const std::uint8_t* flags, std::int64_t count, T value, T* a) {
  for (std::int64_t j = 0; j < count; ++j) a[j] = flags[j] ? a[j] : value;
}

// factors[j] of row i's columns [col, col + count), count <= kStretch.
template <class T>
void dropout_factors(const AttentionDropout& dropout, std::uint32_t row, std::uint32_t head, std::int64_t col,
                     std::int64_t count, T* factors) {
  std::uint32_t words[kStretch / 2 + 8];  // four for each eight columns, whole eights
  std::uint16_t lanes[kStretch + 16];
  const std::int64_t first = col / 8;
  const std::int64_t groups = (col + count - 1) / 8 - first + 1;
  for (std::int64_t g = 0; g < groups; ++g) {
    const philox::Words drawn = philox::draw(dropout.seed, philox::Domain::attention,
                                             static_cast<std::uint32_t>(first + g), row, head, dropout.offset);
    for (int w = 0; w < 4; ++w) words[4 * g + w] = drawn.w[w];
  }
  for (std::int64_t w = 0; w < 4 * groups; ++w) {
    lanes[2 * w] = static_cast<std::uint16_t>(words[w] & 0xffffu);
    lanes[2 * w + 1] = static_cast<std::uint16_t>(words[w] >> 16);
  }
  const std::uint16_t* lane = lanes + (col - 8 * first);
  const auto threshold = static_cast<std::uint16_t>(dropout.threshold);
  const T scale = static_cast<T>(dropout.scale);
  for (std::int64_t j = 0; j < count; ++j) factors[j] = lane[j] >= threshold ? scale : T(0);
}

}  // namespace

template <class T>
void hide_pairs(const AttentionProblem& problem, const Pairs& pairs, T value, T* a, T* b) {
  if (!hides_pairs(problem)) return;
  std::uint8_t flags[kStretch];
  for (std::int64_t i = 0; i < pairs.rows.count; ++i) {
    pairs.cols.for_runs(kStretch, [&](std::int64_t from, std::int64_t key, std::int64_t count) {
      allowed_pairs(problem, pairs.b, pairs.rows.at(i), key, count, flags);
      keep_where(flags, count, value, a + i * pairs.stride + from);
      if (b != nullptr) keep_where(flags, count, value, b + i * pairs.stride + from);
    });
  }
}

Range columns_in_reach(const AttentionProblem& problem, std::int64_t b, const Tokens& rows, const Tokens& cols) {
  if (!problem.regions.present()) return {0, cols.count};
  const std::int32_t* ids = regions_of(problem, b);
  Range reach{cols.count, 0};
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int32_t own = ids[rows.at(i)];
    if (i > 0 && own == ids[rows.at(i - 1)]) continue;
    for (std::int64_t j = 0; j < reach.begin; ++j) {
      if (ids[cols.at(j)] == own) reach.begin = j;
    }
    for (std::int64_t j = cols.count; j > reach.end; --j) {
      if (ids[cols.at(j - 1)] == own) reach.end = j;
    }
  }
  return reach.begin < reach.end ? reach : Range{0, 0};
}

template <class T>
void drop_entries(const AttentionProblem& problem, const Pairs& pairs, T* a, T* b) {
  if (problem.dropout.threshold == 0) return;
  const std::int64_t heads = problem.q.sizes[1];
  const auto head = static_cast<std::uint32_t>((problem.dropout.first_sample + pairs.b) * heads + pairs.h);
  T factors[kStretch];
  for (std::int64_t i = 0; i < pairs.rows.count; ++i) {
    pairs.cols.for_runs(kStretch, [&](std::int64_t from, std::int64_t key, std::int64_t count) {
      dropout_factors(problem.dropout, static_cast<std::uint32_t>(pairs.rows.at(i)), head, key, count, factors);
      T* row = a + i * pairs.stride + from;
      for (std::int64_t j = 0; j < count; ++j) row[j] *= factors[j];
      if (b == nullptr) return;
      row = b + i * pairs.stride + from;
      for (std::int64_t j = 0; j < count; ++j) row[j] *= factors[j];
    });
  }
}

template <class T>
void add_bias(const AttentionProblem& problem, const Pairs& pairs, T* s) {
  if (!problem.bias.present()) return;
  const TensorRef& ref = problem.bias;  // (G, H, Nq, Nk)
  const T* bias = ref.as<T>() + (((pairs.b % ref.sizes[0]) * ref.sizes[1] + pairs.h) * ref.sizes[2]) * ref.sizes[3];
  for (std::int64_t i = 0; i < pairs.rows.count; ++i) {
    const T* row = bias + pairs.rows.at(i) * ref.sizes[3];
    pairs.cols.for_runs(pairs.cols.count, [&](std::int64_t from, std::int64_t key, std::int64_t count) {
      T* to = s + i * pairs.stride + from;
      for (std::int64_t j = 0; j < count; ++j) to[j] += row[key + j];
    });
  }
}

// --- scores and φ ---------------------------------------------------------------------------------------------------

template <class T>
void compute_scores(const AttentionProblem& problem, const Block& block, T* s) {
  const Rows<const T> q = head_rows<const T>(problem.q, block.b, block.h);
  const Rows<const T> k = head_rows<const T>(problem.k, block.b, block.h);
  gemm_serial<T>(false, true, block.rows, block.cols, problem.q.sizes[3], static_cast<T>(problem.score_scale),
                 q.at(block.row), q.stride, k.at(block.col), k.stride, T(0), s, block.cols);
  add_bias(problem, block, s);
}

namespace {

template <class Phi, class T>
void value_loop(T* s, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) s[i] = Phi::value(s[i]);
}

template <class Phi, class T>
void gradient_loop(T* __restrict s, T* __restrict dp, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T score = s[i];
    dp[i] *= Phi::derivative(score);
    s[i] = Phi::value(score);
  }
}

template <class T>
struct Loops {
  template <class Phi>
  struct Of {
    static constexpr PhiLoops<T> kEntry = {value_loop<Phi, T>, gradient_loop<Phi, T>};
  };
};

}  // namespace

template <class T>
const PhiLoops<T>& phi_loops(std::int32_t phi) {
  return phi_list::ActivationList::Table<PhiLoops<T>, Loops<T>::template Of>::kEntries[phi];
}

#define POLYGRAD_INSTANTIATE(T)                                                  \
  template void hide_pairs<T>(const AttentionProblem&, const Pairs&, T, T*, T*); \
  template void drop_entries<T>(const AttentionProblem&, const Pairs&, T*, T*);  \
  template void add_bias<T>(const AttentionProblem&, const Pairs&, T*);          \
  template void compute_scores<T>(const AttentionProblem&, const Block&, T*);    \
  template const PhiLoops<T>& phi_loops<T>(std::int32_t);
POLYGRAD_INSTANTIATE(float)
POLYGRAD_INSTANTIATE(double)
#undef POLYGRAD_INSTANTIATE

}  // namespace polygrad::cpu::attention

// The dropout family on the CPU. Random words are drawn for blocks of elements at once, so that the rounds of Philox
// become vector instructions.
#include "ops/kernels/dropout.h"

#include <algorithm>

#include "engine/bfloat16.h"
#include "engine/parallel.h"
#include "engine/philox.h"
#include "ops/cpu/drop_path.h"
#include "ops/cpu/floating.h"

namespace polygrad {
namespace {

constexpr std::int64_t kBlock = 4 * philox::kDraws;  // elements whose words are drawn together
constexpr std::int64_t kChunk = 16384;               // elements of a chunk; a multiple of kBlock

// A tensor as samples of `length` elements each.
struct Samples {
  std::int64_t count, length;
  explicit Samples(const TensorRef& x)
      : count(x.dim == 0 ? 1 : x.sizes[0]), length(count == 0 ? 0 : x.numel() / count) {}
};

// What an element is computed in: bf16 is stored only.
POLYGRAD_INLINE float load(BFloat16 x) { return widen(x); }
POLYGRAD_INLINE float load(float x) { return x; }
POLYGRAD_INLINE double load(double x) { return x; }
POLYGRAD_INLINE void store(float value, BFloat16& to) { to = round_to_bfloat16(value); }
POLYGRAD_INLINE void store(float value, float& to) { to = value; }
POLYGRAD_INLINE void store(double value, double& to) { to = value; }

template <class F>
void dispatch_stored(DType dtype, const F& f) {
  dtype == DType::bf16 ? f(BFloat16()) : dispatch_floating(dtype, f);
}

// The words of elements first ... first + count - 1 of a sample; first is a multiple of 4. More may be drawn, up to a
// block, where that costs less than to draw one by one.
void draw_block(const DropoutStream& stream, std::int64_t sample, std::int64_t first, std::int64_t count,
                std::uint32_t (&words)[kBlock]) {
  const auto low = static_cast<std::uint32_t>(sample), high = static_cast<std::uint32_t>(sample >> 32);
  const auto group = static_cast<std::uint32_t>(first / 4);
  if (count > kBlock / 4) {
    return philox::draw_many(stream.seed, philox::Domain::dropout, group, low, high, stream.offset, words);
  }
  const auto groups = static_cast<std::uint32_t>((count + 3) / 4);
  for (std::uint32_t i = 0; i < groups; ++i) {
    const philox::Words drawn = philox::draw(stream.seed, philox::Domain::dropout, group + i, low, high, stream.offset);
    for (std::uint32_t lane = 0; lane < 4; ++lane) words[4 * i + lane] = drawn.w[lane];
  }
}

// y = x·scale, or 0 where the word says so.
template <class T, class Computed>
void drop_words(const std::uint32_t* __restrict words, std::uint32_t threshold, const T* __restrict x, Computed scale,
                T* __restrict y, std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j) {
    const Computed kept = load(x[j]) * scale;  // read in any case, so that there is no branch
    store((words[j] >> 8) < threshold ? Computed(0) : kept, y[j]);
  }
}

// Calls f(row, first, end) for pieces of samples, in parallel: elements first ... end - 1 of that row. Pieces begin at
// multiples of kChunk; short samples share a chunk.
template <class F>
void for_pieces(const Samples& samples, const F& f) {
  const std::int64_t pieces = (samples.length + kChunk - 1) / kChunk;
  const std::int64_t grain = std::max<std::int64_t>(1, kChunk / (samples.length + 1));
  parallel_for(0, samples.count * pieces, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t piece = begin; piece < end; ++piece) {
      const std::int64_t first = piece % pieces * kChunk;
      f(piece / pieces, first, std::min(first + kChunk, samples.length));
    }
  });
}

void dropout(Workspace&, const TensorRef& x, const DropoutStream& stream, const TensorRef& y) {
  const Samples samples(x);
  dispatch_stored(x.dtype, [&](auto element) {
    using T = decltype(element);
    using Computed = decltype(load(element));
    const Computed scale = static_cast<Computed>(stream.scale);
    for_pieces(samples, [&](std::int64_t row, std::int64_t first, std::int64_t end) {
      alignas(64) std::uint32_t words[kBlock];
      const T* from = x.as<const T>() + row * samples.length;
      T* to = y.as<T>() + row * samples.length;
      for (std::int64_t block = first; block < end; block += kBlock) {
        const std::int64_t count = std::min(kBlock, end - block);
        draw_block(stream, stream.first_sample + row, block, count, words);
        drop_words(words, stream.threshold, from + block, scale, to + block, count);
      }
    });
  });
}

void drop_path(Workspace&, const TensorRef& x, const DropoutStream& stream, const TensorRef& y) {
  const Samples samples(x);
  dispatch_stored(x.dtype, [&](auto element) {
    using T = decltype(element);
    using Computed = decltype(load(element));
    const Computed scale = static_cast<Computed>(stream.scale);
    for_pieces(samples, [&](std::int64_t row, std::int64_t first, std::int64_t end) {
      const T* from = x.as<const T>() + row * samples.length;
      T* to = y.as<T>() + row * samples.length;
      if (keeps_sample(stream, row)) {
        for (std::int64_t j = first; j < end; ++j) store(load(from[j]) * scale, to[j]);
      } else {
        std::fill(to + first, to + end, T{});
      }
    });
  });
}

// branch is x's dtype, or bf16 beside f32.
template <class T, class Branch>
void residual_add_as(const TensorRef& x, const TensorRef& branch, const DropoutStream& stream, const TensorRef& y) {
  const Samples samples(x);
  const T scale = static_cast<T>(stream.scale);
  for_pieces(samples, [&](std::int64_t row, std::int64_t first, std::int64_t end) {
    const T* left = x.as<const T>() + row * samples.length;
    const Branch* right = branch.as<const Branch>() + row * samples.length;
    T* to = y.as<T>() + row * samples.length;
    if (keeps_sample(stream, row)) {  // every sample for p = 0, with scale 1
      for (std::int64_t j = first; j < end; ++j) to[j] = left[j] + load(right[j]) * scale;
    } else {
      std::copy(left + first, left + end, to + first);
    }
  });
}

void residual_add(Workspace&, const TensorRef& x, const TensorRef& branch, const DropoutStream& stream,
                  const TensorRef& y) {
  if (x.dtype == DType::f32 && branch.dtype == DType::bf16)
    return residual_add_as<float, BFloat16>(x, branch, stream, y);
  dispatch_floating(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    residual_add_as<T, T>(x, branch, stream, y);
  });
}

}  // namespace

constinit const DropoutKernels cpu_dropout_kernels = {
    .dropout = dropout,
    .drop_path = drop_path,
    .residual_add = residual_add,
};

}  // namespace polygrad

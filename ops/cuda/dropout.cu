// The dropout family on a GPU: a thread draws one Philox block, which is the words of four neighbours.
#include "ops/kernels/dropout.h"

#include "engine/backend/cuda/element.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/walk.h"
#include "engine/philox.h"

namespace polygrad::cuda {
namespace {

constexpr int kThreads = 256, kWords = 4;

// A tensor as samples of `length` elements each; packs: four neighbours of a sample are aligned everywhere.
struct Samples {
  std::int64_t count, length;
  Divisor groups;  // of four, in a sample
  bool packs;
  template <class... Refs>
  explicit Samples(const TensorRef& x, const Refs&... others)
      : count(x.dim == 0 ? 1 : x.sizes[0]),
        length(count == 0 ? 0 : x.numel() / count),
        groups(ceil_div(length, kWords)),
        packs(length % kWords == 0 && aligned(x.data, others.data...)) {}
  Grid grid() const { return {.x = ceil_div(count * groups.value, kThreads)}; }
};

// Four neighbours of one sample.
struct Four {
  std::int64_t sample, first;  // first: of the four within the sample
  int count;                   // fewer at the sample's end
};
__device__ __forceinline__ Four four_of_thread(const Samples& samples) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  std::int64_t group;
  const std::int64_t sample = samples.groups.split(index, &group), first = group * kWords;
  if (sample >= samples.count) return {0, 0, 0};
  return {sample, first, samples.length - first < kWords ? static_cast<int>(samples.length - first) : kWords};
}

template <class C>
__device__ __forceinline__ void read_four(const Samples& samples, const Four& four, const Input<C>& x,
                                          C (&value)[kWords]) {
  const std::int64_t at = four.sample * samples.length + four.first;
  if (samples.packs) {
    if constexpr (sizeof(C) == 4) return x.read(at, value);
  }
#pragma unroll
  for (int j = 0; j < kWords; ++j) value[j] = j < four.count ? x[at + j] : C(0);
}
template <class C>
__device__ __forceinline__ void write_four(const Samples& samples, const Four& four, const Output<C>& y,
                                           const C (&value)[kWords]) {
  const std::int64_t at = four.sample * samples.length + four.first;
  if (samples.packs) {
    if constexpr (sizeof(C) == 4) return y.write(at, value);
  }
#pragma unroll
  for (int j = 0; j < kWords; ++j) {
    if (j < four.count) y.write(at + j, value[j]);
  }
}

template <class C>
__global__ void dropout_kernel(Samples samples, Input<C> x, DropoutStream stream, Output<C> y) {
  const Four four = four_of_thread(samples);
  if (four.count == 0) return;
  const auto sample = static_cast<std::uint64_t>(stream.first_sample + four.sample);
  const philox::Words words =
      philox::draw(stream.seed, philox::Domain::dropout, static_cast<std::uint32_t>(four.first / kWords),
                   static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(sample >> 32), stream.offset);
  const C scale = static_cast<C>(stream.scale);
  C value[kWords];
  read_four(samples, four, x, value);
#pragma unroll
  for (int j = 0; j < kWords; ++j) value[j] = (words.w[j] >> 8) < stream.threshold ? C(0) : value[j] * scale;
  write_four(samples, four, y, value);
}

__device__ __forceinline__ bool keeps_sample(const DropoutStream& stream, std::int64_t row) {
  const auto sample = static_cast<std::uint64_t>(stream.first_sample + row);
  const philox::Words words =
      philox::draw(stream.seed, philox::Domain::drop_path, 0, static_cast<std::uint32_t>(sample),
                   static_cast<std::uint32_t>(sample >> 32), stream.offset);
  return (words.w[0] >> 8) >= stream.threshold;
}

// y = x + branch·scale of the samples that are kept; an absent x is nothing.
template <class C>
__global__ void drop_path_kernel(Samples samples, Input<C> x, Input<C> branch, DropoutStream stream, Output<C> y) {
  const Four four = four_of_thread(samples);
  if (four.count == 0) return;
  const bool keep = stream.threshold == 0 || keeps_sample(stream, four.sample);
  const C scale = static_cast<C>(stream.scale);
  C value[kWords] = {}, base[kWords] = {};
  if (keep) read_four(samples, four, branch, value);  // what is dropped is not read: it need not be finite
  if (x.present()) read_four(samples, four, x, base);
#pragma unroll
  for (int j = 0; j < kWords; ++j) {
    const C scaled = keep ? value[j] * scale : C(0);
    value[j] = !x.present() ? scaled : keep ? base[j] + scaled : base[j];
  }
  write_four(samples, four, y, value);
}

void dropout(Workspace&, const TensorRef& x, const DropoutStream& stream, const TensorRef& y) {
  if (x.numel() == 0) return;
  dispatch_compute(x.dtype, [&](auto tag) {
    using C = decltype(tag);
    const Samples samples(x, y);
    launch("dropout", samples.grid(), kThreads, 0, dropout_kernel<C>, samples, Input<C>(x), stream, Output<C>(y));
  });
}

void drop_path(Workspace&, const TensorRef& x, const DropoutStream& stream, const TensorRef& y) {
  if (x.numel() == 0) return;
  dispatch_compute(x.dtype, [&](auto tag) {
    using C = decltype(tag);
    const Samples samples(x, y);
    launch("drop_path", samples.grid(), kThreads, 0, drop_path_kernel<C>, samples, Input<C>(TensorRef{}), Input<C>(x),
           stream, Output<C>(y));
  });
}

void residual_add(Workspace&, const TensorRef& x, const TensorRef& branch, const DropoutStream& stream,
                  const TensorRef& y) {
  if (x.numel() == 0) return;
  dispatch_compute(x.dtype, [&](auto tag) {
    using C = decltype(tag);
    const Samples samples(x, branch, y);
    launch("residual_add", samples.grid(), kThreads, 0, drop_path_kernel<C>, samples, Input<C>(x), Input<C>(branch),
           stream, Output<C>(y));
  });
}

constexpr DropoutKernels kKernels = {.dropout = dropout, .drop_path = drop_path, .residual_add = residual_add};

}  // namespace
}  // namespace polygrad::cuda

namespace polygrad {

const DropoutKernels& cuda_dropout_kernels() { return cuda::kKernels; }

}  // namespace polygrad

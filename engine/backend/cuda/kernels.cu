// The engine's kernels on a GPU: the six of backend/kernels.h, and what tells whether this build suits the device.
#include "engine/backend/kernels.h"

#include <limits>

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/element.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/walk.h"
#include "engine/backend/device_memory.h"
#include "engine/backend/dispatch.h"
#include "engine/math.h"
#include "engine/philox.h"
#include "engine/workspace.h"

namespace polygrad::cuda {
namespace {

constexpr int kThreads = 256;

__device__ std::int64_t global_thread() { return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

Grid grid_for(std::int64_t threads) { return {.x = ceil_div(threads, kThreads)}; }

// --- fill and copy --------------------------------------------------------------------------------------------------

template <class To, class From>
POLYGRAD_INLINE To convert(From value) {
  if constexpr (kNarrow<From>) {
    return convert<To>(widen(value));
  } else if constexpr (kNarrow<To>) {
    return store<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    // As on the CPU: clamped, and NaN is 0.
    const double v = static_cast<double>(value);
    constexpr To kLow = std::numeric_limits<To>::min(), kHigh = std::numeric_limits<To>::max();
    if (v != v) return To{0};
    return v <= static_cast<double>(kLow) ? kLow : v >= static_cast<double>(kHigh) ? kHigh : static_cast<To>(v);
  } else {
    return static_cast<To>(value);
  }
}

template <class T>
__global__ void fill_kernel(T* out, Walk<1> walk, T value) {
  const std::int64_t i = global_thread();
  if (i >= walk.count) return;
  std::int64_t place[1];
  walk.offsets(i, place);
  out[place[0]] = value;
}

void fill(const TensorRef& out, double value) {
  const Walk<1> walk = make_walk<1>({&out});
  dispatch(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch("fill", grid_for(walk.count), kThreads, 0, fill_kernel<T>, out.as<T>(), walk, convert<T>(value));
  });
}

// kCount neighbours a thread: packs where both tensors have them.
template <class T, int kCount>
__global__ void copy_kernel(const T* from, T* to, Walk<2> walk) {
  const std::int64_t i = global_thread() * kCount;
  if (i >= walk.count) return;
  std::int64_t place[2];
  walk.offsets(i, place);
  store_pack<kCount>(to + place[1], load_pack<kCount>(from + place[0]));
}

template <class From, class To>
__global__ void cast_kernel(const From* from, To* to, Walk<2> walk) {
  const std::int64_t i = global_thread();
  if (i >= walk.count) return;
  std::int64_t place[2];
  walk.offsets(i, place);
  to[place[1]] = convert<To>(from[place[0]]);
}

// Between f32 and the 16-bit types, packs of both.
constexpr int kCastPack = 8;
__global__ void cast_packs_kernel(Input<float> from, Output<float> to, Walk<2> walk) {
  const std::int64_t i = global_thread() * kCastPack;
  if (i >= walk.count) return;
  std::int64_t place[2];
  walk.offsets(i, place);
  float x[kCastPack];
  from.read(place[0], x);
  to.write(place[1], x);
}

// Whether `count` neighbours in the walk lie side by side in both tensors, beginning at multiples of it.
bool has_packs(const Walk<2>& walk, int count, const TensorRef& from, const TensorRef& to) {
  const int last = walk.dim - 1;
  bool packs = last >= 0 && walk.strides[0][last] == 1 && walk.strides[1][last] == 1 &&
               walk.sizes[last].value % count == 0 && aligned(from.data, to.data);
  for (int i = 0; i < last; ++i) {
    packs = packs && walk.strides[0][i] % count == 0 && walk.strides[1][i] % count == 0;
  }
  return packs;
}

bool computes_in_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

template <class T>
void copy_same(const TensorRef& from, const TensorRef& to, const Walk<2>& walk) {
  constexpr int kCount = kPack<T>;
  if (has_packs(walk, kCount, from, to)) {
    launch("copy", grid_for(walk.count / kCount), kThreads, 0, copy_kernel<T, kCount>, from.as<const T>(), to.as<T>(),
           walk);
  } else {
    launch("copy", grid_for(walk.count), kThreads, 0, copy_kernel<T, 1>, from.as<const T>(), to.as<T>(), walk);
  }
}

void copy(const TensorRef& from, const TensorRef& to) {
  const Walk<2> walk = make_walk<2>({&from, &to});
  if (from.dtype == to.dtype) {
    dispatch_size(to.dtype, [&](auto tag) { copy_same<decltype(tag)>(from, to, walk); });
    return;
  }
  if (computes_in_float(from.dtype) && computes_in_float(to.dtype) && has_packs(walk, kCastPack, from, to)) {
    launch("cast", grid_for(walk.count / kCastPack), kThreads, 0, cast_packs_kernel, Input<float>(from),
           Output<float>(to), walk);
    return;
  }
  dispatch(from.dtype, [&](auto from_tag) {
    dispatch(to.dtype, [&](auto to_tag) {
      using From = decltype(from_tag);
      using To = decltype(to_tag);
      if constexpr (!std::is_same_v<From, To>) {
        launch("cast", grid_for(walk.count), kThreads, 0, cast_kernel<From, To>, from.as<const From>(), to.as<To>(),
               walk);
      }
    });
  });
}

// --- accumulate -----------------------------------------------------------------------------------------------------

template <class T, int kCount>
__global__ void accumulate_kernel(const T* from, T* into, Walk<2> walk) {
  const std::int64_t i = global_thread() * kCount;
  if (i >= walk.count) return;
  std::int64_t place[2];
  walk.offsets(i, place);
  const Pack<T, kCount> added = load_pack<kCount>(from + place[0]);
  Pack<T, kCount> sum = load_pack<kCount>(into + place[1]);
#pragma unroll
  for (int k = 0; k < kCount; ++k) sum.at[k] = store<T>(load(sum.at[k]) + load(added.at[k]));
  store_pack<kCount>(into + place[1], sum);
}

void accumulate(const TensorRef& from, const TensorRef& into) {
  const Walk<2> walk = make_walk<2>({&from, &into});
  dispatch_floating(into.dtype, [&](auto tag) {
    using T = decltype(tag);
    constexpr int kCount = kPack<T>;
    if (walk.contiguous() && walk.count % kCount == 0 && aligned(from.as<T>(), into.as<T>())) {
      launch("accumulate", grid_for(walk.count / kCount), kThreads, 0, accumulate_kernel<T, kCount>, from.as<const T>(),
             into.as<T>(), walk);
    } else {
      launch("accumulate", grid_for(walk.count), kThreads, 0, accumulate_kernel<T, 1>, from.as<const T>(), into.as<T>(),
             walk);
    }
  });
}

// --- is_finite ------------------------------------------------------------------------------------------------------

// *found counts the warps that met a NaN or an infinity.
template <class T>
__global__ void is_finite_kernel(const T* data, Walk<1> walk, int* found) {
  bool finite = true;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = global_thread(); i < walk.count; i += step) {
    std::int64_t place[1];
    walk.offsets(i, place);
    const Compute<T> value = load(data[place[0]]);
    finite = finite && value * Compute<T>(0) == Compute<T>(0);
  }
  if (!__all_sync(kAllLanes, finite) && threadIdx.x % kWarp == 0) atomicAdd(found, 1);
}

bool is_finite(const TensorRef& tensor) {
  if (!is_floating(tensor.dtype) || tensor.numel() == 0) return true;
  const int device = context().device();
  Workspace workspace(Device::cuda(device));
  int* found = workspace.allocate<int>(1);
  check(cudaMemsetAsync(found, 0, sizeof(int), context().stream().handle), "cudaMemsetAsync");
  const Walk<1> walk = make_walk<1>({&tensor});
  const std::int64_t blocks = ceil_div(walk.count, kThreads), most = 8 * context().properties().multiprocessors;
  dispatch_floating(tensor.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch("is_finite", {.x = blocks < most ? blocks : most}, kThreads, 0, is_finite_kernel<T>, tensor.as<const T>(),
           walk, found);
  });
  int result = 0;
  cuda_memory().copy_out(found, &result, sizeof result, device);  // the one wait
  return result == 0;
}

// --- random numbers -------------------------------------------------------------------------------------------------

struct Uniform {
  static POLYGRAD_INLINE void draw(const philox::Words& words, float* four) {
    for (int i = 0; i < 4; ++i) four[i] = philox::uniform(words.w[i]);
  }
};
struct Normal {
  static POLYGRAD_INLINE void draw(const philox::Words& words, float* four) {
    math::normal_pair(words.w[0], words.w[1], &four[0], &four[1]);
    math::normal_pair(words.w[2], words.w[3], &four[2], &four[3]);
  }
};

// A Philox block, which is four numbers, a thread.
template <class Distribution, class T>
__global__ void random_kernel(T* out, std::int64_t count, RandomStream stream) {
  const std::int64_t block = global_thread(), first = block * 4;
  if (first >= count) return;
  const auto index = static_cast<std::uint64_t>(block);
  const philox::Words words = philox::draw(
      stream.seed, philox::Domain::fill, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
      static_cast<std::uint32_t>(stream.offset), static_cast<std::uint32_t>(stream.offset >> 32));
  float four[4];
  Distribution::draw(words, four);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first + i < count) out[first + i] = static_cast<T>(four[i]);
  }
}

template <class Distribution>
void random_fill(const char* name, const TensorRef& out, const RandomStream& stream) {
  const std::int64_t count = out.numel();
  const Grid grid = grid_for(ceil_div(count, 4));
  if (out.dtype == DType::f64) {
    launch(name, grid, kThreads, 0, random_kernel<Distribution, double>, out.as<double>(), count, stream);
  } else {
    launch(name, grid, kThreads, 0, random_kernel<Distribution, float>, out.as<float>(), count, stream);
  }
}

void random_uniform(const TensorRef& out, const RandomStream& stream) {
  random_fill<Uniform>("random_uniform", out, stream);
}
void random_normal(const TensorRef& out, const RandomStream& stream) {
  random_fill<Normal>("random_normal", out, stream);
}

constexpr EngineKernels kEngineKernels = {
    .fill = fill,
    .copy = copy,
    .accumulate = accumulate,
    .is_finite = is_finite,
    .random_uniform = random_uniform,
    .random_normal = random_normal,
};

}  // namespace

// --- the build ------------------------------------------------------------------------------------------------------

cudaError_t find_kernel_image() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, fill_kernel<float>);
}

}  // namespace polygrad::cuda

namespace polygrad {

const EngineKernels& cuda_engine_kernels(int device) {
  cuda::select(device);
  return cuda::kEngineKernels;
}

}  // namespace polygrad

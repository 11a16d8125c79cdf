// The optim_step family on a GPU: one launch over all tensors of a list, however many and however small they are.
//
// A list is cut into pieces of at most kPiece elements, none with elements of two tensors; a block takes a piece. Which
// tensors there are, and which piece is whose, are two tables in the device's memory (upload), which stay there from
// step to step.
#include "ops/kernels/optim_step.h"

#include <cstring>
#include <vector>

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/element.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/transfer.h"
#include "engine/backend/device_memory.h"
#include "engine/math.h"

namespace polygrad::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kPiece = 8192;

// kTensors tensors of one size, and dtype f32 or f64, that are updated together.
template <int kTensors>
struct Slot {
  void* data[kTensors];
  std::int64_t count;
  bool wide;   // f64
  bool packs;  // all addresses allow packs
};
struct Piece {
  std::int32_t slot, number;  // of the piece within its slot
};

template <int kTensors>
struct Lists {
  const Slot<kTensors>* slots;
  const Piece* pieces;
  std::int64_t count;  // pieces
};

// refs(i, k): tensor k of slot i.
template <int kTensors, class Refs>
Lists<kTensors> make_lists(std::int64_t count, const Refs& refs) {
  std::vector<Slot<kTensors>> slots(static_cast<std::size_t>(count));
  std::vector<Piece> pieces;
  for (std::int64_t i = 0; i < count; ++i) {
    Slot<kTensors>& slot = slots[static_cast<std::size_t>(i)];
    const TensorRef& first = refs(i, 0);
    std::memset(&slot, 0, sizeof slot);  // tables are compared byte by byte
    slot.count = first.numel();
    slot.wide = first.dtype == DType::f64;
    slot.packs = true;
    for (int k = 0; k < kTensors; ++k) {
      slot.data[k] = refs(i, k).data;
      slot.packs = slot.packs && aligned(slot.data[k]);
    }
    for (std::int64_t piece = 0; piece * kPiece < slot.count; ++piece) {
      pieces.push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(piece)});
    }
  }
  return {static_cast<const Slot<kTensors>*>(upload(slots.data(), slots.size() * sizeof(Slot<kTensors>))),
          static_cast<const Piece*>(upload(pieces.data(), pieces.size() * sizeof(Piece))),
          static_cast<std::int64_t>(pieces.size())};
}

// f(numbers of the slot's tensors), written back where F::kWrites says so, for each element of a piece.
template <class C, class F>
__device__ __forceinline__ void update_piece(const F& f, const Slot<F::kTensors>& slot, std::int64_t begin,
                                             std::int64_t end) {
  constexpr int kCount = kPackOf<C>, kTensors = F::kTensors;
  C* data[kTensors];
#pragma unroll
  for (int k = 0; k < kTensors; ++k) data[k] = static_cast<C*>(slot.data[k]);
  // A piece begins at a multiple of kPiece; at the tensor's end there may be less than a pack.
  const std::int64_t whole = slot.packs ? begin + (end - begin) / kCount * kCount : begin;
  for (std::int64_t i = begin + static_cast<std::int64_t>(threadIdx.x) * kCount; i < whole; i += kThreads * kCount) {
    Pack<C, kCount> x[kTensors] = {};  // an absent tensor: 0
#pragma unroll
    for (int k = 0; k < kTensors; ++k) {
      if (data[k] != nullptr) x[k] = load_pack<kCount>(data[k] + i);
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      C numbers[kTensors];
#pragma unroll
      for (int k = 0; k < kTensors; ++k) numbers[k] = x[k].at[j];
      f(numbers);
#pragma unroll
      for (int k = 0; k < kTensors; ++k) x[k].at[j] = numbers[k];
    }
#pragma unroll
    for (int k = 0; k < kTensors; ++k) {
      if ((F::kWrites >> k & 1) != 0 && data[k] != nullptr) store_pack(data[k] + i, x[k]);
    }
  }
  for (std::int64_t i = whole + threadIdx.x; i < end; i += kThreads) {
    C numbers[kTensors] = {};
#pragma unroll
    for (int k = 0; k < kTensors; ++k) {
      if (data[k] != nullptr) numbers[k] = data[k][i];
    }
    f(numbers);
#pragma unroll
    for (int k = 0; k < kTensors; ++k) {
      if ((F::kWrites >> k & 1) != 0 && data[k] != nullptr) data[k][i] = numbers[k];
    }
  }
}

template <class F>
__global__ void update_kernel(F f, Lists<F::kTensors> lists) {
  const Piece piece = lists.pieces[blockIdx.x];
  const Slot<F::kTensors> slot = lists.slots[piece.slot];
  const std::int64_t begin = piece.number * kPiece, end = begin + kPiece < slot.count ? begin + kPiece : slot.count;
  if (slot.wide) {
    update_piece<double>(f, slot, begin, end);
  } else {
    update_piece<float>(f, slot, begin, end);
  }
}

template <class F, class Refs>
void update(const char* name, const F& f, std::int64_t count, const Refs& refs) {
  const Lists<F::kTensors> lists = make_lists<F::kTensors>(count, refs);
  launch(name, {.x = lists.count}, kThreads, 0, update_kernel<F>, f, lists);
}

// --- the updates ----------------------------------------------------------------------------------------------------

// g·scale, formed in f64 where it is no mere g.
template <class C>
__device__ __forceinline__ C scaled(C g, double scale) {
  return scale == 1 ? g : static_cast<C>(static_cast<double>(g) * scale);
}

struct AdamW {
  static constexpr int kTensors = 4;           // param, grad, exp_avg, exp_avg_sq
  static constexpr unsigned kWrites = 0b1101;  // bit k: tensor k
  AdamWFactors factors;
  template <class C>
  __device__ __forceinline__ void operator()(C (&x)[4]) const {
    const C keep = static_cast<C>(factors.keep), step_size = static_cast<C>(factors.step_size);
    const C rate1 = static_cast<C>(1 - factors.beta1), beta2 = static_cast<C>(factors.beta2);
    const C rate2 = static_cast<C>(1 - factors.beta2), root_factor = static_cast<C>(factors.root_factor);
    const C g = scaled(x[1], factors.grad_scale);
    const C mean = x[2] + rate1 * (g - x[2]), square = beta2 * x[3] + rate2 * (g * g);
    x[2] = mean;
    x[3] = square;
    x[0] = x[0] * keep - step_size * (mean / (math::sqrt(square) * root_factor + static_cast<C>(factors.eps)));
  }
};

void adamw(Workspace&, const AdamWRefs* tensors, std::int64_t count, const AdamWFactors& factors) {
  update("adamw", AdamW{factors}, count, [=](std::int64_t i, int k) -> const TensorRef& {
    const AdamWRefs& refs = tensors[i];
    return k == 0 ? refs.param : k == 1 ? refs.grad : k == 2 ? refs.exp_avg : refs.exp_avg_sq;
  });
}

struct Sgd {
  static constexpr int kTensors = 3;  // param, grad, momentum_buffer
  static constexpr unsigned kWrites = 0b101;
  SgdFactors factors;
  bool moves;  // there is a buffer
  template <class C>
  __device__ __forceinline__ void operator()(C (&x)[3]) const {
    const C lr = static_cast<C>(factors.lr), decay = static_cast<C>(factors.weight_decay);
    const C gradient = scaled(x[1], factors.grad_scale) + decay * x[0];
    if (!moves) {
      x[0] -= lr * gradient;
      return;
    }
    const C momentum = static_cast<C>(factors.momentum);
    const C rate = factors.first ? C(1) : static_cast<C>(1 - factors.dampening);
    // What an unused buffer holds must not matter, not even a NaN.
    const C velocity = (factors.first ? C(0) : momentum * x[2]) + rate * gradient;
    x[2] = velocity;
    x[0] -= lr * (factors.nesterov ? gradient + momentum * velocity : velocity);
  }
};

void sgd(Workspace&, const SgdRefs* tensors, std::int64_t count, const SgdFactors& factors) {
  const bool moves = count > 0 && tensors[0].momentum_buffer.present();
  update("sgd", Sgd{factors, moves}, count, [=](std::int64_t i, int k) -> const TensorRef& {
    return k == 0 ? tensors[i].param : k == 1 ? tensors[i].grad : tensors[i].momentum_buffer;
  });
}

struct Scale {
  static constexpr int kTensors = 1;
  static constexpr unsigned kWrites = 0b1;
  double factor;
  template <class C>
  __device__ __forceinline__ void operator()(C (&x)[1]) const {
    x[0] = static_cast<C>(static_cast<double>(x[0]) * factor);
  }
};

void scale(Workspace&, const TensorRef* tensors, std::int64_t count, double factor) {
  update("scale", Scale{factor}, count, [=](std::int64_t i, int) -> const TensorRef& { return tensors[i]; });
}

// From the nearer of the two ends, so that equal values stay equal. At an end the other is not read: it need not be
// finite.
struct Ema {
  static constexpr int kTensors = 2;  // ema, value
  static constexpr unsigned kWrites = 0b01;
  double rate;
  template <class C>
  __device__ __forceinline__ void operator()(C (&x)[2]) const {
    const C step = static_cast<C>(rate), rest = static_cast<C>(1 - rate), difference = x[1] - x[0];
    x[0] = rate == 1 ? x[1] : rate >= 0.5 ? x[1] - rest * difference : x[0] + step * difference;
  }
};

void ema(Workspace&, const EmaRefs* tensors, std::int64_t count, double rate) {
  if (rate == 0) return;
  update("ema", Ema{rate}, count,
         [=](std::int64_t i, int k) -> const TensorRef& { return k == 0 ? tensors[i].ema : tensors[i].value; });
}

// --- norms ----------------------------------------------------------------------------------------------------------

struct Squares {
  double factor;
  __device__ __forceinline__ double term(double x) const { return (x * factor) * (x * factor); }
  __device__ __forceinline__ double combine(double a, double b) const { return a + b; }
};
struct Magnitudes {
  __device__ __forceinline__ double term(double x) const { return x < 0 ? -x : x; }
  __device__ __forceinline__ double combine(double a, double b) const { return Largest()(a, b); }
};
template <class F>
struct Combine {
  F f;
  __device__ __forceinline__ double operator()(double a, double b) const { return f.combine(a, b); }
};

// partial[piece]: the combination of a piece's terms, which are at least 0.
template <class F>
__global__ void reduce_kernel(F f, Lists<1> lists, double* partial) {
  const Piece piece = lists.pieces[blockIdx.x];
  const Slot<1> slot = lists.slots[piece.slot];
  const std::int64_t begin = piece.number * kPiece, end = begin + kPiece < slot.count ? begin + kPiece : slot.count;
  double result = 0;
#pragma unroll 4
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const double x = slot.wide ? static_cast<const double*>(slot.data[0])[i]
                               : static_cast<double>(static_cast<const float*>(slot.data[0])[i]);
    result = f.combine(result, f.term(x));
  }
  result = block_reduce<kThreads>(result, Combine<F>{f});
  if (threadIdx.x == 0) partial[blockIdx.x] = result;
}

template <class F>
__global__ void finish_kernel(F f, const double* partial, std::int64_t count, double* out) {
  double result = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) result = f.combine(result, partial[i]);
  result = block_reduce<kThreads>(result, Combine<F>{f});
  if (threadIdx.x == 0) *out = result;
}

// out, in the device's memory, becomes the combination of all terms.
template <class F>
void reduce(const char* name, Workspace& workspace, const F& f, const TensorRef* tensors, std::int64_t count,
            double* out) {
  const Lists<1> lists = make_lists<1>(count, [=](std::int64_t i, int) -> const TensorRef& { return tensors[i]; });
  double* partial = workspace.allocate<double>(lists.count);
  launch(name, {.x = lists.count}, kThreads, 0, reduce_kernel<F>, f, lists, partial);
  launch(name, {}, kThreads, 0, finish_kernel<F>, f, partial, lists.count, out);
}

void sum_squares(Workspace& workspace, const TensorRef* tensors, std::int64_t count, double factor,
                 const TensorRef& sum) {
  reduce("sum_squares", workspace, Squares{factor}, tensors, count, sum.as<double>());
}

double max_abs(Workspace& workspace, const TensorRef* tensors, std::int64_t count) {
  double *there = workspace.allocate<double>(1), result = 0;
  reduce("max_abs", workspace, Magnitudes{}, tensors, count, there);
  cuda_memory().copy_out(there, &result, sizeof result, workspace.device().index);
  return result;
}

constexpr OptimStepKernels kKernels = {
    .adamw = adamw,
    .sgd = sgd,
    .sum_squares = sum_squares,
    .max_abs = max_abs,
    .scale = scale,
    .ema = ema,
};

}  // namespace
}  // namespace polygrad::cuda

namespace polygrad {

const OptimStepKernels& cuda_optim_step_kernels() { return cuda::kKernels; }

}  // namespace polygrad

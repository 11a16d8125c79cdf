// The optim_step family on the CPU. A list of tensors is cut into chunks that run across all of them, so that many
// small parameters cost one parallel loop.
#include "ops/kernels/optim_step.h"

#include <algorithm>

#include "engine/math.h"
#include "engine/parallel.h"
#include "ops/cpu/floating.h"

namespace polygrad {
namespace {

constexpr std::int64_t kChunk = 16384;  // elements; no chunk holds elements of two tensors
constexpr int kLanes = 16;              // partial sums of a reduction, so that it becomes vector instructions

// The chunks of a list: starts[i] is the first chunk of tensor i.
struct Chunks {
  std::int64_t* starts;
  std::int64_t tensors;
  std::int64_t count() const { return starts[tensors]; }
};
template <class Size>
Chunks make_chunks(Workspace& workspace, std::int64_t tensors, const Size& size) {
  auto* starts = workspace.allocate<std::int64_t>(tensors + 1);
  starts[0] = 0;
  for (std::int64_t i = 0; i < tensors; ++i) starts[i + 1] = starts[i] + (size(i) + kChunk - 1) / kChunk;
  return {starts, tensors};
}

// Calls f(chunk, tensor, begin, end) for every chunk, in parallel.
template <class Size, class F>
void for_chunks(const Chunks& chunks, const Size& size, const F& f) {
  parallel_for(0, chunks.count(), 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t chunk = first; chunk < last; ++chunk) {
      // The last tensor that starts at or before this chunk (an empty one starts where the next does).
      std::int64_t low = 0, high = chunks.tensors - 1;
      while (low < high) {
        const std::int64_t middle = (low + high + 1) / 2;
        if (chunks.starts[middle] <= chunk) {
          low = middle;
        } else {
          high = middle - 1;
        }
      }
      const std::int64_t begin = (chunk - chunks.starts[low]) * kChunk;
      f(chunk, low, begin, std::min(begin + kChunk, size(low)));
    }
  });
}

// g·scale, formed in f64.
template <class T>
POLYGRAD_INLINE T scaled(T g, double scale) {
  return static_cast<T>(static_cast<double>(g) * scale);
}

// Calls f(gradient of element j), with a loop of its own where gradients stay as they are.
template <class T, class F>
void with_gradients(const T* g, double scale, const F& f) {
  if (scale == 1) return f([=](std::int64_t j) { return g[j]; });
  f([=](std::int64_t j) { return scaled(g[j], scale); });
}

void adamw(Workspace& workspace, const AdamWRefs* tensors, std::int64_t count, const AdamWFactors& factors) {
  const auto size = [=](std::int64_t i) { return tensors[i].param.numel(); };
  const Chunks chunks = make_chunks(workspace, count, size);
  for_chunks(chunks, size, [&](std::int64_t, std::int64_t i, std::int64_t begin, std::int64_t end) {
    const AdamWRefs& refs = tensors[i];
    dispatch_floating(refs.param.dtype, [&](auto element) {
      using T = decltype(element);
      T* p = refs.param.as<T>();
      T *m = refs.exp_avg.as<T>(), *v = refs.exp_avg_sq.as<T>();
      const T keep = static_cast<T>(factors.keep), step_size = static_cast<T>(factors.step_size);
      const T rate1 = static_cast<T>(1 - factors.beta1), beta2 = static_cast<T>(factors.beta2);
      const T rate2 = static_cast<T>(1 - factors.beta2), root_factor = static_cast<T>(factors.root_factor);
      const T eps = static_cast<T>(factors.eps);
      with_gradients(refs.grad.as<const T>(), factors.grad_scale, [=](auto gradient) {
#pragma GCC ivdep
        for (std::int64_t j = begin; j < end; ++j) {
          const T g = gradient(j);
          const T mean = m[j] + rate1 * (g - m[j]);
          const T square = beta2 * v[j] + rate2 * (g * g);
          m[j] = mean;
          v[j] = square;
          p[j] = p[j] * keep - step_size * (mean / (math::sqrt(square) * root_factor + eps));
        }
      });
    });
  });
}

void sgd(Workspace& workspace, const SgdRefs* tensors, std::int64_t count, const SgdFactors& factors) {
  const auto size = [=](std::int64_t i) { return tensors[i].param.numel(); };
  const Chunks chunks = make_chunks(workspace, count, size);
  for_chunks(chunks, size, [&](std::int64_t, std::int64_t i, std::int64_t begin, std::int64_t end) {
    const SgdRefs& refs = tensors[i];
    dispatch_floating(refs.param.dtype, [&](auto element) {
      using T = decltype(element);
      T* p = refs.param.as<T>();
      T* b = refs.momentum_buffer.as<T>();
      const bool first = factors.first, nesterov = factors.nesterov;
      const T lr = static_cast<T>(factors.lr), decay = static_cast<T>(factors.weight_decay);
      const T momentum = static_cast<T>(factors.momentum);
      const T rate = factors.first ? T(1) : static_cast<T>(1 - factors.dampening);
      with_gradients(refs.grad.as<const T>(), factors.grad_scale, [=](auto given) {
        if (b == nullptr) {
#pragma GCC ivdep
          for (std::int64_t j = begin; j < end; ++j) p[j] -= lr * (given(j) + decay * p[j]);
          return;
        }
#pragma GCC ivdep
        for (std::int64_t j = begin; j < end; ++j) {
          const T gradient = given(j) + decay * p[j];
          // What an unused buffer holds must not matter, not even a NaN.
          const T velocity = (first ? T(0) : momentum * b[j]) + rate * gradient;
          b[j] = velocity;
          p[j] -= lr * (nesterov ? gradient + momentum * velocity : velocity);
        }
      });
    });
  });
}

void sum_squares(Workspace& workspace, const TensorRef* tensors, std::int64_t count, double factor,
                 const TensorRef& sum) {
  const auto size = [=](std::int64_t i) { return tensors[i].numel(); };
  const Chunks chunks = make_chunks(workspace, count, size);
  auto* partial = workspace.allocate<double>(chunks.count());
  for_chunks(chunks, size, [&](std::int64_t chunk, std::int64_t i, std::int64_t begin, std::int64_t end) {
    dispatch_floating(tensors[i].dtype, [&](auto element) {
      using T = decltype(element);
      const T* x = tensors[i].as<const T>();
      double lanes[kLanes] = {};
      const std::int64_t whole = begin + (end - begin) / kLanes * kLanes;
      for (std::int64_t j = begin; j < whole; j += kLanes) {
        for (int lane = 0; lane < kLanes; ++lane) {
          const double value = static_cast<double>(x[j + lane]) * factor;
          lanes[lane] += value * value;
        }
      }
      for (std::int64_t j = whole; j < end; ++j) {
        const double value = static_cast<double>(x[j]) * factor;
        lanes[0] += value * value;
      }
      double total = 0;
      for (int lane = 0; lane < kLanes; ++lane) total += lanes[lane];
      partial[chunk] = total;
    });
  });
  double total = 0;
  for (std::int64_t chunk = 0; chunk < chunks.count(); ++chunk) total += partial[chunk];
  *sum.as<double>() = total;
}

double max_abs(Workspace& workspace, const TensorRef* tensors, std::int64_t count) {
  const auto size = [=](std::int64_t i) { return tensors[i].numel(); };
  const Chunks chunks = make_chunks(workspace, count, size);
  auto* partial = workspace.allocate<double>(chunks.count());
  for_chunks(chunks, size, [&](std::int64_t chunk, std::int64_t i, std::int64_t begin, std::int64_t end) {
    dispatch_floating(tensors[i].dtype, [&](auto element) {
      using T = decltype(element);
      const T* x = tensors[i].as<const T>();
      double largest = 0;
      for (std::int64_t j = begin; j < end; ++j) {
        const double value = math::abs(static_cast<double>(x[j]));
        largest = value > largest || value != value ? value : largest;
        if (largest != largest) break;
      }
      partial[chunk] = largest;
    });
  });
  double largest = 0;
  for (std::int64_t chunk = 0; chunk < chunks.count(); ++chunk) {
    if (partial[chunk] != partial[chunk]) return partial[chunk];
    largest = std::max(largest, partial[chunk]);
  }
  return largest;
}

void scale(Workspace& workspace, const TensorRef* tensors, std::int64_t count, double factor) {
  const auto size = [=](std::int64_t i) { return tensors[i].numel(); };
  const Chunks chunks = make_chunks(workspace, count, size);
  for_chunks(chunks, size, [&](std::int64_t, std::int64_t i, std::int64_t begin, std::int64_t end) {
    dispatch_floating(tensors[i].dtype, [&](auto element) {
      using T = decltype(element);
      T* x = tensors[i].as<T>();
      for (std::int64_t j = begin; j < end; ++j) x[j] = scaled(x[j], factor);
    });
  });
}

void ema(Workspace& workspace, const EmaRefs* tensors, std::int64_t count, double rate) {
  const auto size = [=](std::int64_t i) { return tensors[i].ema.numel(); };
  const Chunks chunks = make_chunks(workspace, count, size);
  for_chunks(chunks, size, [&](std::int64_t, std::int64_t i, std::int64_t begin, std::int64_t end) {
    dispatch_floating(tensors[i].ema.dtype, [&](auto element) {
      using T = decltype(element);
      T* e = tensors[i].ema.as<T>();
      const T* value = tensors[i].value.as<const T>();
      // From the nearer of the two ends, so that equal values stay equal. At an end the other is not read: it need not
      // be finite.
      const T step = static_cast<T>(rate), rest = static_cast<T>(1 - rate);
      if (rate == 0) return;
      if (rate == 1) {
        std::copy(value + begin, value + end, e + begin);
      } else if (rate >= 0.5) {
        for (std::int64_t j = begin; j < end; ++j) e[j] = value[j] - rest * (value[j] - e[j]);
      } else {
        for (std::int64_t j = begin; j < end; ++j) e[j] += step * (value[j] - e[j]);
      }
    });
  });
}

}  // namespace

constinit const OptimStepKernels cpu_optim_step_kernels = {
    .adamw = adamw,
    .sgd = sgd,
    .sum_squares = sum_squares,
    .max_abs = max_abs,
    .scale = scale,
    .ema = ema,
};

}  // namespace polygrad

// Elementwise maps of one tensor, on the CPU: two loops, instantiated for every functor.
#include "ops/kernels/unary.h"

#include "engine/parallel.h"
#include "ops/cpu/floating.h"

namespace polygrad {
namespace {

// Elements in one chunk: 128 KiB read and written in f32, and some 10 µs of work.
constexpr std::int64_t kGrain = 16384;

template <class F, class T>
void map(F f, const T* __restrict x, T* __restrict y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = f.value(x[i]);
}

template <class F, class T>
void map_x(F f, const T* __restrict g, const T* __restrict x, T* __restrict dx, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) dx[i] = functors::gradient(f, g[i], x[i], T(0));
}
template <class F, class T>
void map_y(F f, const T* __restrict g, const T* __restrict y, T* __restrict dx, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) dx[i] = functors::gradient(f, g[i], T(0), y[i]);
}

template <class F>
void run_forward(F f, const TensorRef& x, const TensorRef& y) {
  dispatch_floating(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    parallel_for(0, x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      map(f, x.as<T>() + begin, y.as<T>() + begin, end - begin);
    });
  });
}

template <functors::Reads kReads, class F>
void run_backward(F f, const TensorRef& g, const TensorRef& saved, const TensorRef& dx) {
  dispatch_floating(g.dtype, [&](auto zero) {
    using T = decltype(zero);
    parallel_for(0, g.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      // A map whose derivative reads nothing is given g itself, so that there is always something to load.
      const T* from = (kReads == functors::Reads::nothing ? g : saved).template as<T>() + begin;
      const auto loop = kReads == functors::Reads::y ? map_y<F, T> : map_x<F, T>;
      loop(f, g.as<T>() + begin, from, dx.as<T>() + begin, end - begin);
    });
  });
}

template <class F>
void forward(Workspace&, const TensorRef& x, const TensorRef& y) {
  run_forward(F{}, x, y);
}

template <class F>
void backward(Workspace&, const TensorRef& g, const TensorRef& saved, const TensorRef& dx) {
  run_backward<F::kReads>(F{}, g, saved, dx);
}

// The exponents that models use have loops of their own: one with a variable number of multiplications is not
// vectorised.
template <class Run>
void for_power(int n, const Run& run) {
  switch (n) {
    case -1:
      return run(functors::Inverse{});
    case 1:
      return run(functors::Identity{});
    case 2:
      return run(functors::Square{});
    case 3:
      return run(functors::Cube{});
    case 4:
      return run(functors::Fourth{});
    default:
      return run(functors::Pow{n});
  }
}

void pow(Workspace&, const TensorRef& x, int n, const TensorRef& y) {
  for_power(n, [&](auto f) { run_forward(f, x, y); });
}

void pow_backward(Workspace&, const TensorRef& g, const TensorRef& x, int n, const TensorRef& dx) {
  for_power(n, [&](auto f) { run_backward<functors::Reads::x>(f, g, x, dx); });
}

template <class... F>
constexpr UnaryKernels table(functors::List<F...>) {
  return {{forward<F>...}, {backward<F>...}, pow, pow_backward};
}

}  // namespace

constinit const UnaryKernels cpu_unary_kernels = table(functors::All{});

}  // namespace polygrad

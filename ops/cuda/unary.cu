// Elementwise maps of one tensor, on a GPU: the functors of the CPU, in one kernel each way.
#include "ops/kernels/unary.h"

#include "ops/cuda/elementwise.h"

namespace polygrad::cuda {
namespace {

using functors::Reads;

template <class F>
struct Value {
  F f;
  template <class C>
  POLYGRAD_INLINE C operator()(C x) const {
    return f.value(x);
  }
};

template <class F, Reads kReads>
struct Gradient {
  F f;
  template <class C>
  POLYGRAD_INLINE C operator()(C g, C saved) const {
    return functors::gradient(f, g, kReads == Reads::x ? saved : C(0), kReads == Reads::y ? saved : C(0));
  }
};

template <class F>
void run_forward(const char* name, F f, const TensorRef& x, const TensorRef& y) {
  dispatch_compute(x.dtype, [&](auto tag) {
    using C = decltype(tag);
    map_flat<C, C>(name, Value<F>{f}, {&x}, y);
  });
}

template <Reads kReads, class F>
void run_backward(const char* name, F f, const TensorRef& g, const TensorRef& saved, const TensorRef& dx) {
  // A map whose derivative reads nothing is given g itself, so that there is always something to load.
  const TensorRef& read = kReads == Reads::nothing ? g : saved;
  dispatch_compute(g.dtype, [&](auto tag) {
    using C = decltype(tag);
    map_flat<C, C>(name, Gradient<F, kReads>{f}, {&g, &read}, dx);
  });
}

template <class F>
void forward(Workspace&, const TensorRef& x, const TensorRef& y) {
  run_forward(F::kName, F{}, x, y);
}

template <class F>
void backward(Workspace&, const TensorRef& g, const TensorRef& saved, const TensorRef& dx) {
  run_backward<F::kReads>(F::kName, F{}, g, saved, dx);
}

// A loop with a variable number of multiplications costs a GPU little beside the memory: one kernel for every exponent
// but -1, whose gradient can overflow on the way.
void pow(Workspace&, const TensorRef& x, int n, const TensorRef& y) {
  if (n == -1) return run_forward("pow", functors::Inverse{}, x, y);
  run_forward("pow", functors::Pow{n}, x, y);
}

void pow_backward(Workspace&, const TensorRef& g, const TensorRef& x, int n, const TensorRef& dx) {
  if (n == -1) return run_backward<Reads::x>("pow", functors::Inverse{}, g, x, dx);
  run_backward<Reads::x>("pow", functors::Pow{n}, g, x, dx);
}

template <class... F>
constexpr UnaryKernels table(functors::List<F...>) {
  return {{forward<F>...}, {backward<F>...}, pow, pow_backward};
}

constexpr UnaryKernels kKernels = table(functors::All{});

}  // namespace
}  // namespace polygrad::cuda

namespace polygrad {

const UnaryKernels& cuda_unary_kernels() { return cuda::kKernels; }

}  // namespace polygrad

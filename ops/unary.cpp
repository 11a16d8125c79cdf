#include "ops/unary.h"

#include <limits>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/workspace.h"
#include "ops/check.h"
#include "ops/kernels/unary.h"

namespace polygrad {
namespace {

using functors::Reads;

Tensor run_backward(const char* op, int place, const Tensor& g, const Tensor& saved) {
  const Tensor gradient = g.contiguous();
  const UnaryKernels& kernels = unary_kernels(g.device().type);
  require_kernel(op, kernels.backward[place] != nullptr, g.device().type);
  Tensor dx = Tensor::empty(g.shape(), g.options());
  Workspace workspace(g.device());
  kernels.backward[place](workspace, gradient.ref(), saved.defined() ? saved.ref() : TensorRef{}, dx.ref());
  return dx;
}

Tensor run(const char* op, int place, Reads reads, const Tensor& x) {
  check_floating(op, x);
  const UnaryKernels& kernels = unary_kernels(x.device().type);
  require_kernel(op, kernels.forward[place] != nullptr, x.device().type);
  const Tensor input = kernel_input(x);
  Tensor y = Tensor::empty(x.shape(), x.options());
  {
    Workspace workspace(x.device());
    kernels.forward[place](workspace, input.ref(), y.ref());
  }
  // y is saved as it is: a SavedTensor holds no edge of the graph.
  SavedTensor saved;
  if (reads == Reads::x) saved = SavedTensor(input, "x");
  if (reads == Reads::y) saved = SavedTensor(y, "y");
  return record(op, y, {x}, [op, place, saved](const Tensor& g, NeededMask) -> Gradients {
    return {run_backward(op, place, g, saved.get())};
  });
}

template <class F>
Tensor run(const Tensor& x) {
  return run(F::kName, functors::kPlace<F>, F::kReads, x);
}

}  // namespace

Tensor neg(const Tensor& x) { return run<functors::Neg>(x); }
Tensor abs(const Tensor& x) { return run<functors::Abs>(x); }
Tensor exp(const Tensor& x) { return run<functors::Exp>(x); }
Tensor log(const Tensor& x) { return run<functors::Log>(x); }
Tensor sqrt(const Tensor& x) { return run<functors::Sqrt>(x); }
Tensor reciprocal(const Tensor& x) { return run<functors::Reciprocal>(x); }
Tensor square(const Tensor& x) { return run<functors::Square>(x); }
Tensor tanh(const Tensor& x) { return run<functors::Tanh>(x); }
Tensor sigmoid(const Tensor& x) { return run<functors::Sigmoid>(x); }
Tensor relu(const Tensor& x) { return run<functors::Relu>(x); }
Tensor elu(const Tensor& x) { return run<functors::Elu>(x); }
Tensor gelu(const Tensor& x) { return run<functors::Gelu>(x); }
Tensor gelu_tanh(const Tensor& x) { return run<functors::GeluTanh>(x); }
Tensor silu(const Tensor& x) { return run<functors::Silu>(x); }
Tensor softplus(const Tensor& x) { return run<functors::Softplus>(x); }
Tensor exp_neg(const Tensor& x) { return run<functors::ExpNeg>(x); }

Tensor pow(const Tensor& x, int n) {
  check_floating("pow", x);
  if (n == std::numeric_limits<int>::min()) {  // the gradient needs n - 1
    throw ValueError(format("[pow] n = {}; expected at least {}", n, n + 1));
  }
  const UnaryKernels& kernels = unary_kernels(x.device().type);
  require_kernel("pow", kernels.pow != nullptr, x.device().type);
  const Tensor input = kernel_input(x);
  Tensor y = Tensor::empty(x.shape(), x.options());
  {
    Workspace workspace(x.device());
    kernels.pow(workspace, input.ref(), n, y.ref());
  }
  return record("pow", y, {x}, [n, saved = SavedTensor(input, "x")](const Tensor& g, NeededMask) -> Gradients {
    const Tensor gradient = g.contiguous(), from = saved.get();
    const UnaryKernels& kernels = unary_kernels(g.device().type);
    require_kernel("pow", kernels.pow_backward != nullptr, g.device().type);
    Tensor dx = Tensor::empty(g.shape(), g.options());
    Workspace workspace(g.device());
    kernels.pow_backward(workspace, gradient.ref(), from.ref(), n, dx.ref());
    return {dx};
  });
}

}  // namespace polygrad

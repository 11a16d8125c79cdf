#include "ops/softmax.h"

#include "engine/autograd.h"
#include "engine/workspace.h"
#include "ops/check.h"
#include "ops/kernels/softmax.h"

namespace polygrad {
namespace {

using Forward = void (*)(Workspace&, const TensorRef& x, const TensorRef& y);
using Backward = void (*)(Workspace&, const TensorRef& g, const TensorRef& y, const TensorRef& dx);

// Both maps have their result as all that the backward needs.
Tensor run(const char* op, Forward SoftmaxKernels::*forward, Backward SoftmaxKernels::*backward, const Tensor& x,
           int dim) {
  check_floating(op, x);
  dim = normalize_dim(op, dim, x.dim());
  const SoftmaxKernels& kernels = softmax_kernels(x.device().type);
  require_kernel(op, kernels.*forward != nullptr, x.device().type);
  const Tensor input = kernel_input(x);
  Tensor y = Tensor::empty(x.shape(), x.options());
  {
    Workspace workspace(x.device());
    (kernels.*forward)(workspace, around(input, dim), around(y, dim));
  }
  return record(op, y, {x}, [=, saved = SavedTensor(y, "y")](const Tensor& g, NeededMask) -> Gradients {
    const Tensor gradient = g.contiguous(), y = saved.get();
    const SoftmaxKernels& kernels = softmax_kernels(g.device().type);
    require_kernel(op, kernels.*backward != nullptr, g.device().type);
    Tensor dx = Tensor::empty(y.shape(), y.options());
    Workspace workspace(g.device());
    (kernels.*backward)(workspace, around(gradient, dim), around(y, dim), around(dx, dim));
    return {dx};
  });
}

}  // namespace

Tensor softmax(const Tensor& x, int dim) {
  return run("softmax", &SoftmaxKernels::softmax, &SoftmaxKernels::softmax_backward, x, dim);
}

Tensor log_softmax(const Tensor& x, int dim) {
  return run("log_softmax", &SoftmaxKernels::log_softmax, &SoftmaxKernels::log_softmax_backward, x, dim);
}

}  // namespace polygrad

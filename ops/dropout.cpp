#include "ops/dropout.h"

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/workspace.h"
#include "ops/check.h"
#include "ops/dropout_stream.h"
#include "ops/kernels/dropout.h"

namespace polygrad {
namespace {

// The entry of the table of x's device; throws where that has none.
template <class Kernel>
Kernel kernel_of(const char* op, const Tensor& x, Kernel DropoutKernels::*entry) {
  const DeviceType device = x.device().type;
  const Kernel kernel = dropout_kernels(device).*entry;
  require_kernel(op, kernel != nullptr, device);
  return kernel;
}

// These only move and scale elements: 16 bits will do.
bool is_narrow(const Tensor& x) {
  return x.dtype() == DType::bf16 || (x.dtype() == DType::f16 && x.device().type == DeviceType::cuda);
}
void check_stored(const char* op, const Tensor& x) {
  if (!x.defined() || !is_narrow(x)) check_floating(op, x);
}

void check_probability(const char* op, double p) {
  if (!(p >= 0 && p < 1)) {
    throw ValueError(format("[{}] p = {}; expected a probability of dropping, 0 <= p < 1", op, p));
  }
}

Tensor apply_dropout(const Tensor& x, const DropoutStream& stream) {
  const Tensor input = kernel_input(x);
  Tensor y = Tensor::empty(x.shape(), x.options());
  Workspace workspace(x.device());
  kernel_of("dropout", x, &DropoutKernels::dropout)(workspace, input.ref(), stream, y.ref());
  return y;
}

Tensor apply_drop_path(const Tensor& x, const DropoutStream& stream) {
  const Tensor input = kernel_input(x);
  Tensor y = Tensor::empty(x.shape(), x.options());
  Workspace workspace(x.device());
  kernel_of("drop_path", x, &DropoutKernels::drop_path)(workspace, input.ref(), stream, y.ref());
  return y;
}

}  // namespace

Tensor dropout(const Tensor& x, double p, Generator& generator) {
  check_stored("dropout", x);
  check_probability("dropout", p);
  const DropoutStream stream = dropout_stream(p, generator.take());
  if (p == 0) return x;
  return record("dropout", apply_dropout(x, stream), {x},
                [stream](const Tensor& g, NeededMask) -> Gradients { return {apply_dropout(g, stream)}; });
}

Tensor drop_path(const Tensor& x, double p, Generator& generator) {
  check_stored("drop_path", x);
  check_probability("drop_path", p);
  const DropoutStream stream = dropout_stream(p, generator.take());
  if (p == 0) return x;
  return record("drop_path", apply_drop_path(x, stream), {x},
                [stream](const Tensor& g, NeededMask) -> Gradients { return {apply_drop_path(g, stream)}; });
}

Tensor residual_add(const Tensor& x, const Tensor& branch, double drop_path_p, Generator* generator) {
  check_floating("residual_add", x);
  check_defined("residual_add", branch, "branch");
  check_probability("residual_add", drop_path_p);
  if (x.shape() != branch.shape()) {
    throw ShapeError(format("[residual_add] shapes differ: x {}, branch {}; nothing is broadcast here",
                            to_string(x.shape()), to_string(branch.shape())));
  }
  if (x.dtype() != DType::f32 || !is_narrow(branch)) check_same_dtype("residual_add", x, branch);
  check_same_device("residual_add", x, branch);
  if (drop_path_p > 0 && generator == nullptr) {
    throw ValueError(
        format("[residual_add] drop_path_p = {} without a generator; expected one to draw from", drop_path_p));
  }
  const DropoutStream stream = dropout_stream(drop_path_p, generator ? generator->take() : RandomStream{});
  const Tensor left = kernel_input(x), right = kernel_input(branch);
  Tensor y = Tensor::empty(x.shape(), x.options());
  {
    Workspace workspace(x.device());
    kernel_of("residual_add", x, &DropoutKernels::residual_add)(workspace, left.ref(), right.ref(), stream, y.ref());
  }
  return record("residual_add", y, {x, branch},
                [stream, branch_dtype = branch.dtype()](const Tensor& g, NeededMask needed) -> Gradients {
                  if (!needed[1]) return {g, Tensor()};
                  const Tensor grad = g.to(branch_dtype);
                  return {g, stream.threshold > 0 ? apply_drop_path(grad, stream) : grad};
                });
}

}  // namespace polygrad

#include "ops/norm.h"

#include <algorithm>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/workspace.h"
#include "ops/check.h"
#include "ops/kernels/norm.h"
#include "ops/rounded_weights.h"

namespace polygrad {
namespace {

void check_parameter(const char* name, const Tensor& x, const Tensor& parameter) {
  if (!parameter.defined()) return;
  check_parameter_dtype("layer_norm", x, parameter, name);
  check_same_device("layer_norm", x, parameter);
  if (parameter.shape() != Shape{x.size(-1)}) {
    throw ShapeError(format("[layer_norm] {} does not fit: x {}, {} {}; expected {}, the last dimension of x", name,
                            to_string(x.shape()), name, to_string(parameter.shape()), to_string(Shape{x.size(-1)})));
  }
}

TensorRef ref_or_absent(const Tensor& t) { return t.defined() ? t.ref() : TensorRef{}; }

// A contiguous (..., D) as (rows, D).
TensorRef rows_of(const Tensor& t) {
  TensorRef ref = around(t, t.dim() - 1);
  ref.dim = 2;
  return ref;
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  const bool narrow = computes_narrow(x);
  if (!narrow) check_floating("layer_norm", x);
  if (x.dim() == 0) throw ShapeError("[layer_norm] x has no dimensions: expected (..., D), got ()");
  check_parameter("weight", x, weight);
  check_parameter("bias", x, bias);
  if (!(eps >= 0)) throw ValueError(format("[layer_norm] eps must not be negative: got {}", eps));
  const NormKernels& kernels = norm_kernels(x.device().type);
  require_kernel("layer_norm", kernels.layer_norm != nullptr, x.device().type);

  const Tensor input = kernel_input(narrow ? x.detach().to(DType::f32) : x);
  const Tensor scale = weight.defined() ? kernel_input(weight) : Tensor(),
               shift = bias.defined() ? kernel_input(bias) : Tensor();
  const std::int64_t rows = x.numel() / std::max<std::int64_t>(1, x.size(-1));
  const TensorOptions statistics{.dtype = DType::f64, .device = x.device()};
  Tensor y = Tensor::empty(x.shape(), narrow ? rounded_options(x) : x.options());
  Tensor mean = Tensor::empty({rows}, statistics), rstd = Tensor::empty({rows}, statistics);
  {
    Workspace workspace(x.device());
    kernels.layer_norm(workspace, rows_of(input), ref_or_absent(scale), ref_or_absent(shift), eps, rows_of(y),
                       mean.ref(), rstd.ref());
  }
  return record("layer_norm", y, {x, weight, bias},
                [mean, rstd, x_dtype = x.dtype(), saved_x = SavedTensor(input, "x"),
                 saved_weight = needs_grad({x}) && scale.defined() ? SavedTensor(scale, "weight") : SavedTensor()](
                    const Tensor& g, NeededMask needed) -> Gradients {
                  const Tensor gradient = g.contiguous(), x = saved_x.get(),
                               weight = needed[0] ? saved_weight.get() : Tensor();  // only dx reads it
                  const NormKernels& kernels = norm_kernels(g.device().type);
                  require_kernel("layer_norm", kernels.layer_norm_backward != nullptr, g.device().type);
                  const auto make = [&](bool wanted, const Shape& shape) {  // all of the computation's dtype
                    return wanted ? Tensor::empty(shape, x.options()) : Tensor();
                  };
                  Tensor dx = make(needed[0], x.shape()), dweight = make(needed[1], {x.size(-1)}),
                         dbias = make(needed[2], {x.size(-1)});
                  Workspace workspace(g.device());
                  kernels.layer_norm_backward(workspace, rows_of(gradient), rows_of(x), ref_or_absent(weight),
                                              mean.ref(), rstd.ref(), dx.defined() ? rows_of(dx) : TensorRef{},
                                              ref_or_absent(dweight), ref_or_absent(dbias));
                  return {dx.defined() ? dx.to(x_dtype) : dx, dweight, dbias};
                });
}

}  // namespace polygrad

#include "ops/pre_norm.h"

#include <algorithm>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/format.h"
#include "engine/workspace.h"
#include "ops/check.h"
#include "ops/dropout_stream.h"
#include "ops/kernels/pre_norm.h"
#include "ops/rounded_weights.h"

namespace polygrad {
namespace {

template <class Kernel>
Kernel kernel_of(const char* op, const Tensor& x, Kernel PreNormKernels::*entry) {
  const DeviceType device = x.device().type;
  const Kernel kernel = pre_norm_kernels(device).*entry;
  require_kernel(op, kernel != nullptr, device);
  return kernel;
}

// --- checks ---------------------------------------------------------------------------------------------------------

void check_width(const char* op, const Tensor& x, const char* name) {
  if (x.dim() == 0) throw ShapeError(format("[{}] {} has no dimensions: expected (..., D), got ()", op, name));
}

void check_rows(const char* op, const Tensor& x, const char* name) {
  check_floating(op, x, name);
  check_width(op, x, name);
}

void check_parameter(const char* op, const Tensor& x, const Tensor& parameter, const char* name,
                     const Shape& expected) {
  check_parameter_dtype(op, x, parameter, name);
  check_same_device(op, x, parameter, name);
  if (parameter.shape() != expected) {
    throw ShapeError(format("[{}] {} does not fit: x {}, {} {}; expected {}", op, name, to_string(x.shape()), name,
                            to_string(parameter.shape()), to_string(expected)));
  }
}

void check_norm(const char* op, const Tensor& x, const NormParameters& norm) {
  check_parameter(op, x, norm.weight, "norm.weight", {x.size(-1)});
  check_parameter(op, x, norm.bias, "norm.bias", {x.size(-1)});
  if (!(norm.eps >= 0)) throw ValueError(format("[{}] norm.eps must not be negative: got {}", op, norm.eps));
}

// `out`: what the result's width has to be, or -1 for any.
void check_linear(const char* op, const Tensor& x, const LinearParameters& linear, const char* name, std::int64_t in,
                  std::int64_t out) {
  check_defined(op, linear.weight, name);
  const bool matrix = linear.weight.dim() == 2;
  check_parameter(op, x, linear.weight, name, {out >= 0 ? out : matrix ? linear.weight.size(0) : 1, in});
  check_parameter(op, x, linear.bias, name, {linear.weight.size(0)});
}

void check_drop(const char* op, const BranchDrop& drop) {
  if (!(drop.p >= 0 && drop.p < 1)) {
    throw ValueError(format("[{}] drop.p = {}; expected a probability of dropping, 0 <= p < 1", op, drop.p));
  }
  if (drop.p > 0 && drop.generator == nullptr) {
    throw ValueError(format("[{}] drop.p = {} without a generator; expected one to draw from", op, drop.p));
  }
}

// --- what kernels want ----------------------------------------------------------------------------------------------

// A contiguous (..., cols) as (rows, cols).
TensorRef rows_of(const Tensor& t) {
  TensorRef ref = around(t, t.dim() - 1);
  ref.dim = 2;
  return ref;
}

std::int64_t row_count(const Tensor& x) {
  std::int64_t rows = 1;
  for (int d = 0; d + 1 < x.dim(); ++d) rows *= x.size(d);
  return rows;
}

TensorRef ref_or_absent(const Tensor& t) { return t.defined() ? t.ref() : TensorRef{}; }

BranchScale scale_of(const BranchDrop& drop, const Tensor& x) {
  const std::int64_t samples = x.dim() > 1 ? x.size(0) : 1;
  return {dropout_stream(drop.p, drop.generator != nullptr ? drop.generator->take() : RandomStream{}),
          samples == 0 ? 1 : std::max<std::int64_t>(1, row_count(x) / samples)};
}

// Parameters as the kernels read them: contiguous, outside the graph.
struct SavedNorm {
  Tensor x, weight, bias, mean, rstd;
  double eps;
  SavedNorm(const Tensor& from, const NormParameters& norm)
      : x(kernel_input(from)), weight(kernel_input(norm.weight)), bias(kernel_input(norm.bias)), eps(norm.eps) {
    const TensorOptions statistics{.dtype = DType::f64, .device = from.device()};
    mean = Tensor::empty({row_count(from)}, statistics);
    rstd = Tensor::empty({row_count(from)}, statistics);
  }
  RowNorm refs() const { return {rows_of(x), weight.ref(), bias.ref(), eps, mean.ref(), rstd.ref()}; }
};

// What a rule keeps of one: the versions are checked when it runs.
class NormForBackward {
 public:
  explicit NormForBackward(const SavedNorm& norm)
      : x_(norm.x, "x"),
        weight_(norm.weight, "norm.weight"),
        bias_(norm.bias, "norm.bias"),
        mean_(norm.mean),
        rstd_(norm.rstd) {}
  struct Held {
    Tensor x, weight, bias, mean, rstd;
    RowNorm refs() const { return {rows_of(x), weight.ref(), bias.ref(), 0, mean.ref(), rstd.ref()}; }
  };
  Held get() const { return {x_.get(), weight_.get(), bias_.get(), mean_, rstd_}; }

 private:
  SavedTensor x_, weight_, bias_;
  Tensor mean_, rstd_;
};

struct SavedLinear {
  Tensor weight, bias, packed;
  // `narrow`: for products in 16 bits.
  SavedLinear(const char* op, const LinearParameters& linear, bool narrow)
      : weight(kernel_input(linear.weight)),
        bias(kernel_input(linear.bias)),
        packed(narrow ? packed_weight(op, weight, product_dtype(), true) : Tensor()) {}
  RowLinear refs() const { return {weight.ref(), bias.ref(), ref_or_absent(packed)}; }
};

// The same for a backward, which multiplies by the weight itself.
struct LinearForBackward {
  Tensor weight, packed;
  // `products`: the forward's dtype.
  LinearForBackward(const char* op, const SavedTensor& saved, DType products)
      : weight(saved.get()),
        packed(products != weight.dtype() ? packed_weight(op, weight, products, false) : Tensor()) {}
  RowLinear refs() const { return {weight.ref(), {}, ref_or_absent(packed)}; }
};

// A fresh gradient where it is needed.
Tensor gradient_if(bool needed, const Tensor& like) { return needed ? empty_like(like) : Tensor(); }
Tensor bias_gradient_if(bool needed, const Tensor& weight) {
  return needed ? Tensor::empty({weight.size(0)}, weight.options()) : Tensor();
}

}  // namespace

Tensor pre_norm_linear(const Tensor& x, const NormParameters& norm, const LinearParameters& linear) {
  const char* op = "pre_norm_linear";
  check_rows(op, x, "x");
  check_norm(op, x, norm);
  check_linear(op, x, linear, "linear", x.size(-1), -1);
  const bool narrow = computes_narrow(x);
  const SavedNorm saved_norm(x, norm);
  const SavedLinear saved_linear(op, linear, narrow);
  Shape shape = x.shape();
  shape[shape.dim() - 1] = linear.weight.size(0);
  Tensor y = Tensor::empty(shape, narrow ? rounded_options(x) : x.options());
  {
    Workspace workspace(x.device());
    kernel_of(op, x, &PreNormKernels::linear)(workspace, saved_norm.refs(), saved_linear.refs(), rows_of(y));
  }
  return record(op, y, {x, norm.weight, norm.bias, linear.weight, linear.bias},
                [held = NormForBackward(saved_norm), saved_weight = SavedTensor(saved_linear.weight, "linear.weight"),
                 products = y.dtype()](const Tensor& g, NeededMask needed) -> Gradients {
                  const auto norm = held.get();
                  const Tensor grad = g.contiguous();
                  const LinearForBackward linear("pre_norm_linear", saved_weight, products);
                  Gradients out = {gradient_if(needed[0], norm.x), gradient_if(needed[1], norm.weight),
                                   gradient_if(needed[2], norm.bias), gradient_if(needed[3], linear.weight),
                                   bias_gradient_if(needed[4], linear.weight)};
                  Workspace workspace(g.device());
                  kernel_of("pre_norm_linear", g, &PreNormKernels::linear_backward)(
                      workspace, norm.refs(), linear.refs(), rows_of(grad),
                      {out[0].defined() ? rows_of(out[0]) : TensorRef{}, ref_or_absent(out[1]), ref_or_absent(out[2])},
                      {ref_or_absent(out[3]), ref_or_absent(out[4])});
                  return out;
                });
}

Tensor linear_residual(const Tensor& residual, const Tensor& x, const LinearParameters& linear,
                       const BranchDrop& drop) {
  const char* op = "linear_residual";
  const bool narrow = computes_narrow(x);
  if (!narrow) check_floating(op, x);
  check_width(op, x, "x");
  check_rows(op, residual, "residual");
  check_linear(op, x, linear, "linear", x.size(-1), -1);
  check_drop(op, drop);
  Shape shape = x.shape();
  shape[shape.dim() - 1] = linear.weight.size(0);
  check_parameter(op, x, residual, "residual", shape);
  const BranchScale scale = scale_of(drop, x);
  const Tensor input = kernel_input(narrow ? rounded(x) : x), left = kernel_input(residual);
  const SavedLinear saved_linear(op, linear, narrow);
  Tensor y = Tensor::empty(shape, residual.options());
  {
    Workspace workspace(x.device());
    kernel_of(op, x, &PreNormKernels::linear_residual)(workspace, rows_of(left), rows_of(input), saved_linear.refs(),
                                                       scale, rows_of(y));
  }
  return record(op, y, {residual, x, linear.weight, linear.bias},
                [saved_x = SavedTensor(input, "x"), saved_weight = SavedTensor(saved_linear.weight, "linear.weight"),
                 scale, x_options = x.options()](const Tensor& g, NeededMask needed) -> Gradients {
                  Gradients out(4);
                  if (needed[0]) out[0] = g;
                  if (!needed[1] && !needed[2] && !needed[3]) return out;
                  const Tensor grad = g.contiguous(), x = saved_x.get();
                  const LinearForBackward linear("linear_residual", saved_weight, x.dtype());
                  if (needed[1]) out[1] = Tensor::empty(x.shape(), x_options);
                  out[2] = gradient_if(needed[2], linear.weight);
                  out[3] = bias_gradient_if(needed[3], linear.weight);
                  Workspace workspace(g.device());
                  kernel_of("linear_residual", g, &PreNormKernels::linear_residual_backward)(
                      workspace, rows_of(x), linear.refs(), scale, rows_of(grad),
                      out[1].defined() ? rows_of(out[1]) : TensorRef{}, {ref_or_absent(out[2]), ref_or_absent(out[3])});
                  return out;
                });
}

Tensor pre_norm_mlp(const Tensor& x, const NormParameters& norm, const LinearParameters& fc1,
                    const LinearParameters& fc2, const BranchDrop& drop) {
  const char* op = "pre_norm_mlp";
  check_rows(op, x, "x");
  check_norm(op, x, norm);
  check_linear(op, x, fc1, "fc1", x.size(-1), -1);
  check_linear(op, x, fc2, "fc2", fc1.weight.size(0), x.size(-1));
  check_drop(op, drop);
  const BranchScale scale = scale_of(drop, x);
  const SavedNorm saved_norm(x, norm);
  const bool narrow = computes_narrow(x);
  const SavedLinear saved_fc1(op, fc1, narrow), saved_fc2(op, fc2, narrow);
  Tensor y = Tensor::empty(x.shape(), x.options());
  const bool keep = needs_grad({x, norm.weight, norm.bias, fc1.weight, fc1.bias, fc2.weight, fc2.bias});
  const Tensor pre =
      keep ? Tensor::empty({row_count(x), fc1.weight.size(0)}, narrow ? rounded_options(x) : x.options()) : Tensor();
  {
    Workspace workspace(x.device());
    kernel_of(op, x, &PreNormKernels::mlp)(workspace, saved_norm.refs(), saved_fc1.refs(), saved_fc2.refs(), scale,
                                           ref_or_absent(pre), rows_of(y));
  }
  return record(op, y, {x, norm.weight, norm.bias, fc1.weight, fc1.bias, fc2.weight, fc2.bias},
                [held = NormForBackward(saved_norm), saved_weight1 = SavedTensor(saved_fc1.weight, "fc1.weight"),
                 saved_weight2 = SavedTensor(saved_fc2.weight, "fc2.weight"), saved_pre = SavedTensor(pre, "pre"),
                 scale](const Tensor& g, NeededMask needed) -> Gradients {
                  const auto norm = held.get();
                  const Tensor grad = g.contiguous(), pre = saved_pre.get();
                  const LinearForBackward fc1("pre_norm_mlp", saved_weight1, pre.dtype()),
                      fc2("pre_norm_mlp", saved_weight2, pre.dtype());
                  Gradients out = {gradient_if(needed[0], norm.x),          gradient_if(needed[1], norm.weight),
                                   gradient_if(needed[2], norm.bias),       gradient_if(needed[3], fc1.weight),
                                   bias_gradient_if(needed[4], fc1.weight), gradient_if(needed[5], fc2.weight),
                                   bias_gradient_if(needed[6], fc2.weight)};
                  Workspace workspace(g.device());
                  kernel_of("pre_norm_mlp", g, &PreNormKernels::mlp_backward)(
                      workspace, norm.refs(), fc1.refs(), fc2.refs(), scale, pre.ref(), rows_of(grad),
                      {out[0].defined() ? rows_of(out[0]) : TensorRef{}, ref_or_absent(out[1]), ref_or_absent(out[2])},
                      {ref_or_absent(out[3]), ref_or_absent(out[4])}, {ref_or_absent(out[5]), ref_or_absent(out[6])});
                  return out;
                });
}

}  // namespace polygrad

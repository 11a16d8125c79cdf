#include "ops/binary.h"

#include <cmath>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/format.h"
#include "engine/workspace.h"
#include "ops/check.h"
#include "ops/kernels/binary.h"
#include "ops/reduce.h"
#include "ops/unary.h"

namespace polygrad {
namespace {

// The gradient of operand `which`, summed to that operand's shape.
template <class F>
Tensor run_backward(BinaryKernels::Arithmetic BinaryKernels::*map, int which, const Tensor& g, const SavedTensor& a,
                    const SavedTensor& b, const Shape& shape) {
  constexpr bool kConstant[2] = {!F::kReads[0][0] && !F::kReads[0][1], !F::kReads[1][0] && !F::kReads[1][1]};
  if (kConstant[which]) {
    const bool negative = (which == 0 ? F::gradient_a(1.0, 0.0, 0.0) : F::gradient_b(1.0, 0.0, 0.0)) < 0;
    const Tensor summed = sum_to_shape(g, shape);
    return negative ? neg(summed) : summed;
  }
  const Tensor gradient = g.contiguous();
  const BinaryKernels& kernels = binary_kernels(g.device().type);
  require_kernel(F::kName, (kernels.*map).backward[which] != nullptr, g.device().type);
  Tensor out = Tensor::empty(g.shape(), g.options());
  {
    // What the gradient doesn't read was not saved.
    const Tensor first = F::kReads[which][0] ? a.get() : gradient, second = F::kReads[which][1] ? b.get() : gradient;
    Workspace workspace(g.device());
    (kernels.*map).backward[which](workspace, gradient.ref(), first.ref(), second.ref(), out.ref());
  }
  return sum_to_shape(out, shape);
}

template <class F>
Tensor run(BinaryKernels::Arithmetic BinaryKernels::*map, const Tensor& a, const Tensor& b) {
  check_floating(F::kName, a, "a");
  check_same_dtype(F::kName, a, b);
  check_same_device(F::kName, a, b);
  const BinaryKernels& kernels = binary_kernels(a.device().type);
  require_kernel(F::kName, (kernels.*map).forward != nullptr, a.device().type);
  Tensor out = Tensor::empty(broadcast_shapes(F::kName, a.shape(), b.shape()), a.options());
  {
    Workspace workspace(a.device());
    (kernels.*map).forward(workspace, a.ref(), b.ref(), out.ref());
  }
  const bool needed[2] = {needs_grad({a}), needs_grad({b})};
  const auto read = [&](int operand) {
    return (needed[0] && F::kReads[0][operand]) || (needed[1] && F::kReads[1][operand]);
  };
  const SavedTensor saved_a = read(0) ? SavedTensor(a, "a") : SavedTensor();
  const SavedTensor saved_b = read(1) ? SavedTensor(b, "b") : SavedTensor();
  return record(F::kName, out, {a, b},
                [map, saved_a, saved_b, shape_a = a.shape(), shape_b = b.shape()](const Tensor& g,
                                                                                  NeededMask needed) -> Gradients {
                  Gradients gradients(2);
                  if (needed[0]) gradients[0] = run_backward<F>(map, 0, g, saved_a, saved_b, shape_a);
                  if (needed[1]) gradients[1] = run_backward<F>(map, 1, g, saved_a, saved_b, shape_b);
                  return gradients;
                });
}

// A number as a tensor that broadcasts to everything; undefined beside an undefined tensor, which the op then names.
Tensor scalar(double value, const Tensor& like) {
  if (!like.defined()) return {};
  return full({}, value, {.dtype = like.dtype(), .device = like.device()});
}

Tensor compare(const char* op, Comparison comparison, const Tensor& a, const Tensor& b) {
  check_defined(op, a, "a");
  if (a.dtype() == DType::bf16 || a.dtype() == DType::f16) {
    throw DTypeError(
        format("[{}] wrong dtype: 16-bit types are storage only, got {}; convert it with to()", op, describe(a)));
  }
  check_same_dtype(op, a, b);
  check_same_device(op, a, b);
  const BinaryKernels& kernels = binary_kernels(a.device().type);
  require_kernel(op, kernels.compare != nullptr, a.device().type);
  Tensor out =
      Tensor::empty(broadcast_shapes(op, a.shape(), b.shape()), {.dtype = DType::boolean, .device = a.device()});
  {
    Workspace workspace(a.device());
    kernels.compare(workspace, comparison, a.ref(), b.ref(), out.ref());
  }
  return non_differentiable(op, out);
}

Tensor compare(const char* op, Comparison comparison, const Tensor& a, double b) {
  check_defined(op, a, "a");
  double low = 0, high = 0;
  switch (a.dtype()) {
    case DType::boolean:
      high = 1;
      break;
    case DType::u8:
      high = 255;
      break;
    case DType::i32:
      low = -0x1p31;
      high = 0x1p31 - 1;
      break;
    case DType::i64:  // the integers that a double holds exactly
      low = -0x1p53;
      high = 0x1p53;
      break;
    default:
      return compare(op, comparison, a, scalar(b, a));
  }
  if (!(b >= low && b <= high) || b != std::floor(b)) {
    throw ValueError(format("[{}] compared with a number that {} doesn't hold: {}; expected an integer from {} to {}",
                            op, to_string(a.dtype()), b, low, high));
  }
  return compare(op, comparison, a, scalar(b, a));
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return run<functors::Add>(&BinaryKernels::add, a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return run<functors::Sub>(&BinaryKernels::sub, a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return run<functors::Mul>(&BinaryKernels::mul, a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return run<functors::Div>(&BinaryKernels::div, a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return run<functors::Maximum>(&BinaryKernels::maximum, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return run<functors::Minimum>(&BinaryKernels::minimum, a, b); }

Tensor add(const Tensor& a, double b) { return add(a, scalar(b, a)); }
Tensor sub(const Tensor& a, double b) { return sub(a, scalar(b, a)); }
Tensor mul(const Tensor& a, double b) { return mul(a, scalar(b, a)); }
Tensor div(const Tensor& a, double b) { return div(a, scalar(b, a)); }
Tensor maximum(const Tensor& a, double b) { return maximum(a, scalar(b, a)); }
Tensor minimum(const Tensor& a, double b) { return minimum(a, scalar(b, a)); }

Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
Tensor operator+(const Tensor& a, double b) { return add(a, b); }
Tensor operator-(const Tensor& a, double b) { return sub(a, b); }
Tensor operator*(const Tensor& a, double b) { return mul(a, b); }
Tensor operator/(const Tensor& a, double b) { return div(a, b); }
Tensor operator+(double a, const Tensor& b) { return add(scalar(a, b), b); }
Tensor operator-(double a, const Tensor& b) { return sub(scalar(a, b), b); }
Tensor operator*(double a, const Tensor& b) { return mul(scalar(a, b), b); }
Tensor operator/(double a, const Tensor& b) { return div(scalar(a, b), b); }
Tensor operator-(const Tensor& x) { return neg(x); }

Tensor eq(const Tensor& a, const Tensor& b) { return compare("eq", Comparison::eq, a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return compare("ne", Comparison::ne, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return compare("lt", Comparison::lt, a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return compare("le", Comparison::le, a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return compare("gt", Comparison::gt, a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return compare("ge", Comparison::ge, a, b); }
Tensor eq(const Tensor& a, double b) { return compare("eq", Comparison::eq, a, b); }
Tensor ne(const Tensor& a, double b) { return compare("ne", Comparison::ne, a, b); }
Tensor lt(const Tensor& a, double b) { return compare("lt", Comparison::lt, a, b); }
Tensor le(const Tensor& a, double b) { return compare("le", Comparison::le, a, b); }
Tensor gt(const Tensor& a, double b) { return compare("gt", Comparison::gt, a, b); }
Tensor ge(const Tensor& a, double b) { return compare("ge", Comparison::ge, a, b); }

}  // namespace polygrad

#include "ops/matmul.h"

#include <algorithm>
#include <utility>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/format.h"
#include "engine/workspace.h"
#include "ops/check.h"
#include "ops/kernels/matmul.h"
#include "ops/rounded_weights.h"

namespace polygrad {
namespace {

// The entry of the table of a device; throws where that has none.
template <class Kernel>
Kernel kernel_of(const char* op, Device device, Kernel MatmulKernels::*entry) {
  const Kernel kernel = matmul_kernels(device.type).*entry;
  require_kernel(op, kernel != nullptr, device.type);
  return kernel;
}

void check_operands(const char* op, const Tensor& a, const Tensor& b, const char* a_name, const char* b_name) {
  check_floating(op, a, a_name);
  check_same_dtype(op, a, b, b_name);
  check_same_device(op, a, b);
}

// --- matrices as kernels want them ----------------------------------------------------------------------------------

// x itself where its last two dimensions are a matrix by rows or columns, else a contiguous copy. Not recorded.
Tensor as_matrices(const Tensor& x) {
  const int rows = x.dim() - 2, cols = x.dim() - 1;
  const bool valid = matrix_layout(x.shape()[rows], x.shape()[cols], x.strides()[rows], x.strides()[cols]).valid;
  return valid ? x.detach() : x.detach().contiguous();
}

// x (..., cols) as (rows, cols), without a copy where the leading dimensions lie behind one another. Not recorded.
Tensor as_rows(const Tensor& x) {
  const std::int64_t cols = x.shape().back();
  std::int64_t rows = 1, stride = 0;
  bool regular = true;
  for (int d = x.dim() - 2; d >= 0; --d) {
    const std::int64_t size = x.shape()[d];
    if (size == 1) continue;
    if (rows == 1) stride = x.strides()[d];
    regular = regular && x.strides()[d] == rows * stride;
    rows *= size;
  }
  const std::int64_t col_stride = x.strides()[x.dim() - 1];
  const Shape shape{rows, cols};
  if (regular && matrix_layout(rows, cols, stride, col_stride).valid) {
    return make_view(x.detach(), shape, {stride, col_stride}, 0);
  }
  const Tensor copy = x.detach().contiguous();
  return make_view(copy, shape, shape.contiguous_strides(), 0);
}

TensorRef transposed(TensorRef ref) {
  const int last = ref.dim - 1;
  std::swap(ref.sizes[last - 1], ref.sizes[last]);
  std::swap(ref.strides[last - 1], ref.strides[last]);
  return ref;
}

// The reference with the batch dimensions of `batch`: missing and single ones get stride 0.
TensorRef broadcast(const TensorRef& ref, const Shape& batch) {
  TensorRef wide = ref;
  wide.dim = batch.dim() + 2;
  const int shift = wide.dim - ref.dim;
  for (int d = wide.dim - 1; d >= 0; --d) {
    const bool matrix = d >= wide.dim - 2, single = d < shift || ref.sizes[d - shift] == 1;
    wide.sizes[d] = matrix ? ref.sizes[d - shift] : batch[d];
    wide.strides[d] = single && !matrix ? 0 : ref.strides[d - shift];
  }
  return wide;
}

// a b into a new tensor of `shape`, in which batch dimensions that are single or missing are summed over.
Tensor multiply(const char* op, const TensorRef& a, const TensorRef& b, const Shape& batch, const Shape& shape,
                const TensorOptions& options) {
  Tensor out = Tensor::empty(shape, options);
  Workspace workspace(options.device);
  kernel_of(op, options.device, &MatmulKernels::matmul)(workspace, broadcast(a, batch), broadcast(b, batch),
                                                        broadcast(out.ref(), batch));
  return out;
}

Tensor product(const char* op, const TensorRef& a, const TensorRef& b, const Shape& shape,
               const TensorOptions& options) {
  return multiply(op, a, b, Shape{}, shape, options);
}

// A factor that the gradient of `other` reads; nothing where that is not needed, so that a frozen weight keeps no
// activations alive.
SavedTensor save_for(const Tensor& other, const Tensor& factor, const char* name) {
  return needs_grad({other}) ? SavedTensor(factor, name) : SavedTensor();
}

// --- linear ---------------------------------------------------------------------------------------------------------

void check_linear(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const auto check_parameter = [&](const Tensor& parameter, const char* name) {
    if (!computes_narrow(x)) check_floating(op, x);
    check_parameter_dtype(op, x, parameter, name);
    check_same_device(op, x, parameter, name);
  };
  check_parameter(weight, "weight");
  if (weight.dim() != 2) {
    throw ShapeError(format("[{}] weight must be a matrix: x {}, weight {}; expected (out, in)", op,
                            to_string(x.shape()), to_string(weight.shape())));
  }
  if (x.dim() < 1 || x.size(-1) != weight.size(1)) {
    throw ShapeError(
        format("[{}] the last size of x is not the weight's second: x {}, weight {}; expected x (..., {}); "
               "weight is (out, in)",
               op, to_string(x.shape()), to_string(weight.shape()), weight.size(1)));
  }
  if (!bias.defined()) return;
  check_parameter(bias, "bias");
  if (bias.dim() != 1 || bias.size(0) != weight.size(0)) {
    throw ShapeError(format("[{}] bias does not fit the weight: bias {}, weight {}; expected bias ({})", op,
                            to_string(bias.shape()), to_string(weight.shape()), weight.size(0)));
  }
}

bool is_narrow(const Tensor& x) { return dtype_size(x.dtype()) == 2; }

// Of a parameter's gradient: f32 where activations have 16 bits.
TensorOptions parameter_options(const Tensor& grad) {
  return {.dtype = is_narrow(grad) ? DType::f32 : grad.dtype(), .device = grad.device()};
}

Shape linear_shape(const Tensor& x, const Tensor& weight) {
  Shape shape = x.shape();
  shape[shape.dim() - 1] = weight.size(0);
  return shape;
}

// x as the product reads it: its rows, in 16 bits where the product is (then contiguous).
Tensor linear_input(const Tensor& x, bool narrow) { return as_rows(narrow ? rounded(x).contiguous() : x); }

// What the gradients of x and weight read: the weight and, of x, what was multiplied.
struct LinearSaved {
  SavedTensor x, weight;
  Shape x_shape;
  DType x_dtype;
  LinearSaved(const Tensor& x, const Tensor& multiplied, const Tensor& weight)
      : x(save_for(weight, multiplied, "x")),
        weight(save_for(x, weight, "weight")),
        x_shape(x.shape()),
        x_dtype(x.dtype()) {}
};

// The gradients of linear, where grad (rows, out) is that of x weightᵀ + bias; in 16 bits where the forward was. The
// bias gradient is left to the caller.
Gradients linear_gradients(const char* op, const Tensor& grad, const LinearSaved& saved, NeededMask needed) {
  Gradients gradients(3);
  const bool narrow = is_narrow(grad);
  if (needed[0]) {  // grad weight: (rows, out) x (out, in)
    const Tensor weight = saved.weight.get();
    const Shape shape{grad.size(0), weight.size(1)};
    const TensorOptions options{.dtype = saved.x_dtype, .device = grad.device()};
    Tensor flat;
    if (narrow) {
      flat = Tensor::empty(shape, options);
      Workspace workspace(grad.device());
      kernel_of(op, grad.device(), &MatmulKernels::linear_packed)(workspace, grad.contiguous().ref(),
                                                                  packed_weight(op, weight, grad.dtype(), false).ref(),
                                                                  TensorRef{}, flat.ref());
    } else {
      flat = product(op, grad.ref(), as_matrices(weight).ref(), shape, options);
    }
    gradients[0] = make_view(flat, saved.x_shape, saved.x_shape.contiguous_strides(), 0);
  }
  if (needed[1]) {  // gradᵀ x: (out, rows) x (rows, in)
    const Tensor rows = as_rows(saved.x.get());
    gradients[1] =
        product(op, transposed(grad.ref()), rows.ref(), {grad.size(1), rows.size(1)}, parameter_options(grad));
  }
  return gradients;
}

TensorRef optional_ref(const Tensor& x) { return x.defined() ? x.ref() : TensorRef{}; }

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  // Under a PrecisionGuard each factor may be f32 or the guard's dtype.
  const bool narrow = computes_narrow(a) && computes_narrow(b);
  narrow ? check_same_device("matmul", a, b) : check_operands("matmul", a, b, "a", "b");
  const auto fail = [&](const char* what) {
    throw ShapeError(
        format("[matmul] {}: {} and {}; expected (..., m, k) and (..., k, n), with leading sizes that are "
               "equal or 1",
               what, to_string(a.shape()), to_string(b.shape())));
  };
  if (a.dim() < 2 || b.dim() < 2) fail("a factor has fewer than two dimensions");
  if (a.size(-1) != b.size(-2)) fail("the inner sizes differ");
  Shape batch;
  for (int d = std::max(a.dim(), b.dim()); d > 2; --d) {  // d counts from the end
    const std::int64_t a_size = d <= a.dim() ? a.size(-d) : 1, b_size = d <= b.dim() ? b.size(-d) : 1;
    if (a_size != b_size && a_size != 1 && b_size != 1) fail("the leading sizes do not broadcast");
    batch.push_back(a_size == 1 ? b_size : a_size);
  }
  Shape shape = batch;
  shape.push_back(a.size(-2));
  shape.push_back(b.size(-1));

  const Tensor left = narrow ? rounded(a) : a, right = narrow ? rounded(b) : b;
  const Tensor y = multiply("matmul", as_matrices(left).ref(), as_matrices(right).ref(), batch, shape, left.options());
  return record("matmul", y, {a, b},
                [batch, a_shape = a.shape(), b_shape = b.shape(), a_options = a.options(), b_options = b.options(),
                 saved_a = save_for(b, left, "a"),
                 saved_b = save_for(a, right, "b")](const Tensor& g, NeededMask needed) -> Gradients {
                  const Tensor grad = as_matrices(g);
                  Gradients gradients(2);
                  if (needed[0]) {
                    const Tensor b = as_matrices(saved_b.get());
                    gradients[0] = multiply("matmul", grad.ref(), transposed(b.ref()), batch, a_shape, a_options);
                  }
                  if (needed[1]) {
                    const Tensor a = as_matrices(saved_a.get());
                    gradients[1] = multiply("matmul", transposed(a.ref()), grad.ref(), batch, b_shape, b_options);
                  }
                  return gradients;
                });
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_linear("linear", x, weight, bias);
  const bool narrow = computes_narrow(x);
  const Tensor input = linear_input(x, narrow);
  const Tensor vector = bias.defined() ? bias.detach().contiguous() : Tensor();
  Tensor y = Tensor::empty(linear_shape(x, weight), narrow ? rounded_options(x) : x.options());
  {
    Workspace workspace(x.device());
    if (narrow) {
      kernel_of("linear", x.device(), &MatmulKernels::linear_packed)(
          workspace, input.ref(), packed_weight("linear", weight, y.dtype(), true).ref(), optional_ref(vector),
          as_rows(y).ref());
    } else {
      kernel_of("linear", x.device(), &MatmulKernels::linear)(workspace, input.ref(), as_matrices(weight).ref(),
                                                              optional_ref(vector), as_rows(y).ref());
    }
  }
  return record("linear", y, {x, weight, bias},
                [saved = LinearSaved(x, narrow ? input : x, weight)](const Tensor& g, NeededMask needed) {
                  const Tensor grad = as_rows(g);
                  Gradients gradients = linear_gradients("linear", grad, saved, needed);
                  if (needed[2]) {
                    gradients[2] = Tensor::empty({grad.size(1)}, parameter_options(grad));
                    Workspace workspace(g.device());
                    kernel_of("linear", g.device(), &MatmulKernels::column_sums)(workspace, grad.contiguous().ref(),
                                                                                 gradients[2].ref());
                  }
                  return gradients;
                });
}

Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_linear("linear_gelu", x, weight, bias);
  const bool narrow = computes_narrow(x);
  const Tensor input = linear_input(x, narrow);
  const Tensor vector = bias.defined() ? bias.detach().contiguous() : Tensor();
  const TensorOptions options = narrow ? rounded_options(x) : x.options();
  Tensor y = Tensor::empty(linear_shape(x, weight), options);
  // What the gradient needs: the argument of gelu.
  const Tensor pre = needs_grad({x, weight, bias}) ? Tensor::empty({input.size(0), weight.size(0)}, options) : Tensor();
  {
    Workspace workspace(x.device());
    if (narrow) {
      kernel_of("linear_gelu", x.device(), &MatmulKernels::linear_gelu_packed)(
          workspace, input.ref(), packed_weight("linear_gelu", weight, y.dtype(), true).ref(), optional_ref(vector),
          optional_ref(pre), as_rows(y).ref());
    } else {
      kernel_of("linear_gelu", x.device(), &MatmulKernels::linear_gelu)(
          workspace, input.ref(), as_matrices(weight).ref(), optional_ref(vector), optional_ref(pre), as_rows(y).ref());
    }
  }
  return record("linear_gelu", y, {x, weight, bias},
                [saved = LinearSaved(x, narrow ? input : x, weight), saved_pre = SavedTensor(pre, "pre")](
                    const Tensor& g, NeededMask needed) {
                  const Tensor pre = saved_pre.get();
                  Tensor grad_pre = empty_like(pre);
                  Tensor grad_bias = needed[2] ? Tensor::empty({pre.size(1)}, parameter_options(g)) : Tensor();
                  {
                    Workspace workspace(g.device());
                    kernel_of("linear_gelu", g.device(), &MatmulKernels::linear_gelu_backward)(
                        workspace, as_rows(g).contiguous().ref(), pre.ref(), grad_pre.ref(), optional_ref(grad_bias));
                  }
                  Gradients gradients = linear_gradients("linear_gelu", grad_pre, saved, needed);
                  gradients[2] = grad_bias;
                  return gradients;
                });
}

}  // namespace polygrad

#include "ops/reduce.h"

#include <algorithm>
#include <utility>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/workspace.h"
#include "ops/binary.h"
#include "ops/check.h"
#include "ops/kernels/reduce.h"

namespace polygrad {
namespace {

std::uint32_t all_dims(const char* op, const Tensor& x) {
  check_defined(op, x);
  return (1u << x.dim()) - 1;
}

// Bit i: dimension i is reduced.
std::uint32_t mask_of(const char* op, const Tensor& x, const std::vector<int>& dims) {
  check_defined(op, x);
  if (dims.empty()) {
    throw ValueError(format("[{}] no dimension given for {}; name at least one, or none at all for the whole tensor",
                            op, describe(x)));
  }
  std::uint32_t mask = 0;
  for (int dim : dims) {
    const std::uint32_t bit = 1u << normalize_dim(op, dim, x.dim());
    if (mask & bit) throw ValueError(format("[{}] dimension {} given twice for {}", op, dim, describe(x)));
    mask |= bit;
  }
  return mask;
}

// y, of x's shape without the dimensions in `mask`, or with size 1 there, repeated over them.
Tensor repeat(const Tensor& y, const Shape& shape, std::uint32_t mask, bool keepdim) {
  Shape strides = shape;
  for (int i = 0, from = 0; i < shape.dim(); ++i) {
    const bool reduced = (mask >> i) & 1;
    strides[i] = reduced ? 0 : y.strides()[from];
    from += !reduced || keepdim;
  }
  return make_view(y, shape, strides, 0);
}

// The shape left when the dimensions in `mask` are reduced.
Shape reduced_shape(const Shape& shape, std::uint32_t mask, bool keepdim) {
  Shape left;
  for (int i = 0; i < shape.dim(); ++i) {
    const bool reduced = (mask >> i) & 1;
    if (!reduced) left.push_back(shape[i]);
    if (reduced && keepdim) left.push_back(1);
  }
  return left;
}

// scale·Σ x
Tensor scaled_sum(const char* op, const Tensor& x, std::uint32_t mask, bool keepdim, double scale) {
  check_floating(op, x);
  const ReduceKernels& kernels = reduce_kernels(x.device().type);
  require_kernel(op, kernels.sum != nullptr, x.device().type);
  const Tensor input = kernel_input(x);
  Tensor y = Tensor::empty(reduced_shape(x.shape(), mask, keepdim), x.options());
  {
    Workspace workspace(x.device());
    kernels.sum(workspace, input.ref(), mask, scale, y.ref());
  }
  return record(op, y, {x}, [=, shape = x.shape()](const Tensor& g, NeededMask) -> Gradients {
    return {repeat(scale == 1 ? g : mul(g, scale), shape, mask, keepdim)};
  });
}

Tensor scaled_mean(const Tensor& x, std::uint32_t mask, bool keepdim) {
  std::int64_t count = 1;
  for (int i = 0; i < x.dim(); ++i) count *= (mask >> i) & 1 ? x.size(i) : 1;
  if (count == 0) throw ValueError(format("[mean] the mean of nothing: {} has no elements there", describe(x)));
  return scaled_sum("mean", x, mask, keepdim, 1.0 / static_cast<double>(count));
}

void check_not_empty(const char* op, const Tensor& x, int dim) {
  if (x.size(dim) == 0) {
    throw ValueError(format("[{}] the largest of nothing: dimension {} of {} has size 0", op, dim, describe(x)));
  }
}

}  // namespace

Tensor sum(const Tensor& x) { return scaled_sum("sum", x, all_dims("sum", x), false, 1); }

Tensor sum(const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  return scaled_sum("sum", x, mask_of("sum", x, dims), keepdim, 1);
}

Tensor sum_to_shape(const Tensor& x, const Shape& shape) {
  check_defined("sum_to_shape", x);
  const int extra = x.dim() - shape.dim();
  std::uint32_t mask = 0;
  bool fits = extra >= 0;
  for (int i = 0; fits && i < x.dim(); ++i) {
    const bool repeated = i < extra || (shape[i - extra] == 1 && x.size(i) != 1);
    fits = repeated || shape[i - extra] == x.size(i);
    if (repeated) mask |= 1u << i;
  }
  if (!fits) {
    throw ShapeError(
        format("[sum_to_shape] {} does not come from {} by broadcasting; expected sizes that are equal or "
               "1 where summed, aligned at the right",
               to_string(x.shape()), to_string(shape)));
  }
  check_floating("sum_to_shape", x);
  if (mask == 0) {
    return record("sum_to_shape", x, {x}, [](const Tensor& g, NeededMask) -> Gradients { return {g}; });
  }
  // The kernel writes what is kept in order; `shape` only adds sizes of 1 to that.
  const ReduceKernels& kernels = reduce_kernels(x.device().type);
  require_kernel("sum_to_shape", kernels.sum != nullptr, x.device().type);
  const Tensor input = kernel_input(x);
  Tensor y = Tensor::empty(shape, x.options());
  {
    Workspace workspace(x.device());
    kernels.sum(workspace, input.ref(), mask, 1, y.ref());
  }
  return record("sum_to_shape", y, {x}, [mask, extra, from = x.shape()](const Tensor& g, NeededMask) -> Gradients {
    Shape strides = from;
    for (int i = 0; i < from.dim(); ++i) strides[i] = (mask >> i) & 1 ? 0 : g.strides()[i - extra];
    return {make_view(g, from, strides, 0)};
  });
}

Tensor mean(const Tensor& x) { return scaled_mean(x, all_dims("mean", x), false); }

Tensor mean(const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  return scaled_mean(x, mask_of("mean", x, dims), keepdim);
}

Tensor amax(const Tensor& x, int dim, bool keepdim) {
  check_floating("amax", x);
  dim = normalize_dim("amax", dim, x.dim());
  check_not_empty("amax", x, dim);
  const ReduceKernels& kernels = reduce_kernels(x.device().type);
  require_kernel("amax", kernels.amax != nullptr, x.device().type);
  const Tensor input = kernel_input(x);
  const TensorRef slabs = around(input, dim);
  Tensor y = Tensor::empty(reduced_shape(x.shape(), 1u << dim, keepdim), x.options());
  {
    Workspace workspace(x.device());
    kernels.amax(workspace, slabs, y.ref());
  }
  return record("amax", y, {x},
                [dim, saved_x = SavedTensor(input, "x"), saved_y = SavedTensor(y, "y")](const Tensor& g,
                                                                                        NeededMask) -> Gradients {
                  const Tensor gradient = g.contiguous(), x = saved_x.get(), y = saved_y.get();
                  const ReduceKernels& kernels = reduce_kernels(g.device().type);
                  require_kernel("amax", kernels.amax_backward != nullptr, g.device().type);
                  Tensor dx = Tensor::empty(x.shape(), x.options());
                  Workspace workspace(g.device());
                  kernels.amax_backward(workspace, gradient.ref(), around(x, dim), y.ref(), dx.ref());
                  return {dx};
                });
}

Tensor argmax(const Tensor& x, int dim) {
  check_floating("argmax", x);
  dim = normalize_dim("argmax", dim, x.dim());
  check_not_empty("argmax", x, dim);
  const ReduceKernels& kernels = reduce_kernels(x.device().type);
  require_kernel("argmax", kernels.argmax != nullptr, x.device().type);
  const Tensor input = kernel_input(x);
  const TensorRef slabs = around(input, dim);
  Tensor indices =
      Tensor::empty(reduced_shape(x.shape(), 1u << dim, false), {.dtype = DType::i64, .device = x.device()});
  {
    Workspace workspace(x.device());
    kernels.argmax(workspace, slabs, indices.ref());
  }
  return non_differentiable("argmax", indices);
}

std::pair<Tensor, Tensor> topk(const Tensor& x, std::int64_t k) {
  check_floating("topk", x);
  no_backward("topk", {x});
  if (x.dim() == 0 || k < 0 || k > x.size(-1)) {
    throw ValueError(format("[topk] k out of range: k = {} of the last dimension of {}", k, describe(x)));
  }
  const ReduceKernels& kernels = reduce_kernels(x.device().type);
  require_kernel("topk", kernels.topk != nullptr, x.device().type);
  const Tensor input = kernel_input(x);
  Shape shape = x.shape();
  shape[x.dim() - 1] = k;
  Tensor values = Tensor::empty(shape, x.options());
  Tensor indices = Tensor::empty(shape, {.dtype = DType::i64, .device = x.device()});
  // The kernel sees rows.
  const auto rows_of = [rows = x.shape().numel() / std::max<std::int64_t>(1, x.size(-1))](const Tensor& t) {
    TensorRef ref = t.ref();
    ref.sizes[1] = ref.sizes[ref.dim - 1];
    ref.sizes[0] = rows;
    ref.strides[0] = ref.sizes[1];
    ref.strides[1] = 1;
    ref.dim = 2;
    return ref;
  };
  {
    Workspace workspace(x.device());
    kernels.topk(workspace, rows_of(input), rows_of(values), rows_of(indices));
  }
  return {non_differentiable("topk", values), non_differentiable("topk", indices)};
}

}  // namespace polygrad

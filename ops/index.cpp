#include "ops/index.h"

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/workspace.h"
#include "ops/check.h"
#include "ops/kernels/index.h"
#include "ops/view.h"

namespace polygrad {
namespace {

// The entry of the table of x's device; throws where that has none.
template <class Kernel>
Kernel kernel_of(const char* op, const Tensor& x, Kernel IndexKernels::*entry) {
  const DeviceType device = x.device().type;
  const Kernel kernel = index_kernels(device).*entry;
  require_kernel(op, kernel != nullptr, device);
  return kernel;
}

// (outer, size, inner) around one dimension.
Shape around(const Shape& shape, int dim) {
  std::int64_t outer = 1, inner = 1;
  for (int i = 0; i < dim; ++i) outer *= shape[i];
  for (int i = dim + 1; i < shape.dim(); ++i) inner *= shape[i];
  return {outer, shape[dim], inner};
}

// What a kernel reads, in the form that it wants.
Tensor kernel_input(const Tensor& x, const Shape& form) { return reshape(kernel_input(x), form); }

// "[2, 0, 1]": the indices of the element at `position` in row-major order; "" in a tensor of rank 0.
std::string position_text(const Shape& shape, std::int64_t position) {
  std::string text;
  for (int i = shape.dim() - 1; i >= 0; --i) {
    text = std::to_string(position % shape[i]) + (text.empty() ? "" : ", ") + text;
    position /= shape[i];
  }
  return text.empty() ? "" : "[" + text + "]";
}

// index_select and embedding: rows of x's dimension dim; the row `skipped` gets no gradient.
Tensor select_rows(const char* op, const Tensor& x, int dim, const Tensor& ids, Shape shape, std::int64_t skipped) {
  if (needs_grad({x})) check_floating(op, x);  // reading takes every dtype, the gradient's sums don't
  const Shape form = around(x.shape(), dim);
  const Shape picked{form[0], ids.numel(), form[2]};
  const Tensor input = kernel_input(x, form), positions = kernel_input(ids, {ids.numel()});
  Tensor y = Tensor::empty(picked, x.options());
  {
    Workspace workspace(x.device());
    kernel_of(op, x, &IndexKernels::select_rows)(workspace, input.ref(), positions.ref(), y.ref());
  }
  return record(op, reshape(y, shape), {x},
                [=, from = x.shape(), saved = SavedTensor(positions, "ids")](const Tensor& g, NeededMask) -> Gradients {
                  const Tensor gy = kernel_input(g, picked);
                  Tensor gx = Tensor::empty(form, g.options());
                  Workspace workspace(g.device());
                  kernel_of(op, g, &IndexKernels::select_rows_backward)(workspace, gy.ref(), saved.get().ref(), skipped,
                                                                        gx.ref());
                  return {reshape(gx, from)};
                });
}

// x with value where the mask (of its shape, contiguous) is true.
Tensor fill_where(const Tensor& x, const Tensor& mask, double value) {
  const Tensor input = kernel_input(x);
  const Tensor element = Tensor::empty({}, {.dtype = x.dtype()}).fill_(value);
  Tensor y = Tensor::empty(x.shape(), x.options());
  Workspace workspace(x.device());
  kernel_of("masked_fill", x, &IndexKernels::masked_fill)(workspace, input.ref(), mask.ref(), element.ref().data,
                                                          y.ref());
  return y;
}

}  // namespace

void detail::check_indices(const char* op, const char* name, const Tensor& ids, std::int64_t size,
                           const std::int64_t* allowed) {
  check_defined(op, ids, name);
  if (ids.dtype() != DType::i64) {
    throw DTypeError(format("[{}] {} is {}; expected i64; convert with to()", op, name, to_string(ids.dtype())));
  }
  const Tensor flat = kernel_input(ids, {ids.numel()});
  std::int64_t position;
  {
    Workspace workspace(ids.device());
    position = kernel_of(op, ids, &IndexKernels::first_outside)(workspace, flat.ref(), size, allowed);
  }
  if (position < 0) return;
  throw IndexError(format("[{}] {}{} = {}; expected 0 <= value < {}{}", op, name, position_text(ids.shape(), position),
                          select(flat, 0, position).item<std::int64_t>(), size,
                          allowed ? format(", or {} to ignore it", *allowed) : ""));
}

Tensor gather(const Tensor& x, int dim, const Tensor& index) {
  check_defined("gather", x);
  check_same_device("gather", x, index, "index");
  const int d = normalize_dim("gather", dim, x.dim());
  bool fits = index.dim() == x.dim();
  for (int i = 0; fits && i < x.dim(); ++i) fits = i == d || index.shape()[i] == x.shape()[i];
  if (!fits) {
    throw ShapeError(
        format("[gather] index {} does not fit x {} along dimension {}; expected equal sizes in all other "
               "dimensions; use expand or slice",
               to_string(index.shape()), to_string(x.shape()), d));
  }
  if (needs_grad({x})) check_floating("gather", x);
  detail::check_indices("gather", "index", index, x.shape()[d]);
  const Shape form = around(x.shape(), d), picked = around(index.shape(), d);
  const Tensor input = kernel_input(x, form), positions = kernel_input(index, picked);
  Tensor y = Tensor::empty(picked, x.options());
  {
    Workspace workspace(x.device());
    kernel_of("gather", x, &IndexKernels::gather)(workspace, input.ref(), positions.ref(), y.ref());
  }
  return record(
      "gather", reshape(y, index.shape()), {x},
      [=, from = x.shape(), saved = SavedTensor(positions, "index")](const Tensor& g, NeededMask) -> Gradients {
        const Tensor gy = kernel_input(g, picked);
        Tensor gx = Tensor::empty(form, g.options());
        Workspace workspace(g.device());
        kernel_of("gather", g, &IndexKernels::gather_backward)(workspace, gy.ref(), saved.get().ref(), gx.ref());
        return {reshape(gx, from)};
      });
}

Tensor index_select(const Tensor& x, int dim, const Tensor& ids) {
  check_defined("index_select", x);
  check_same_device("index_select", x, ids, "ids");
  const int d = normalize_dim("index_select", dim, x.dim());
  if (ids.dim() != 1) {
    throw ShapeError(format("[index_select] ids {}; expected rank 1, got {}", to_string(ids.shape()), ids.dim()));
  }
  detail::check_indices("index_select", "ids", ids, x.shape()[d]);
  Shape shape = x.shape();
  shape[d] = ids.numel();
  return select_rows("index_select", x, d, ids, shape, -1);
}

Tensor embedding(const Tensor& weight, const Tensor& ids, std::int64_t padding_idx) {
  check_defined("embedding", weight, "weight");
  if (weight.dim() != 2) {
    throw ShapeError(format("[embedding] weight {}; expected (rows, width)", to_string(weight.shape())));
  }
  check_same_device("embedding", weight, ids, "ids");
  const std::int64_t rows = weight.shape()[0];
  if (padding_idx < -1 || padding_idx >= rows) {
    throw ValueError(
        format("[embedding] padding_idx {} for weight {}; expected a row, 0 <= padding_idx < {}, or -1 for "
               "none",
               padding_idx, to_string(weight.shape()), rows));
  }
  detail::check_indices("embedding", "ids", ids, rows);
  Shape shape = ids.shape();
  shape.push_back(weight.shape()[1]);
  return select_rows("embedding", weight, 0, ids, shape, padding_idx);
}

Tensor one_hot(const Tensor& ids, std::int64_t classes, DType dtype) {
  if (classes < 0) throw ValueError(format("[one_hot] {} classes; expected no negative number", classes));
  detail::check_indices("one_hot", "ids", ids, classes);
  const Tensor flat = kernel_input(ids, {ids.numel()});
  Tensor y = Tensor::empty({ids.numel(), classes}, {.dtype = dtype, .device = ids.device()});
  {
    Workspace workspace(ids.device());
    kernel_of("one_hot", ids, &IndexKernels::one_hot)(workspace, flat.ref(), y.ref());
  }
  Shape shape = ids.shape();
  shape.push_back(classes);
  return non_differentiable("one_hot", reshape(y, shape));
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  check_defined("masked_fill", x);
  check_same_device("masked_fill", x, mask, "mask");
  if (mask.dtype() != DType::boolean) {
    throw DTypeError(
        format("[masked_fill] mask is {}; expected bool; compare to make one: ne(mask, 0)", to_string(mask.dtype())));
  }
  if (mask.dim() > x.dim() || broadcast_shapes("masked_fill", x.shape(), mask.shape()) != x.shape()) {
    throw ShapeError(
        format("[masked_fill] mask {} does not broadcast to x {}", to_string(mask.shape()), to_string(x.shape())));
  }
  const Tensor where = expand(mask, x.shape()).contiguous();
  return record("masked_fill", fill_where(x, where, value), {x},
                [saved = SavedTensor(where, "mask")](const Tensor& g, NeededMask) -> Gradients {
                  return {fill_where(g, saved.get(), 0)};
                });
}

}  // namespace polygrad

#include "ops/view.h"

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/format.h"
#include "ops/check.h"
#include "ops/reduce.h"

namespace polygrad {
namespace {

// The target shape with its -1 replaced.
Shape resolve(const Tensor& x, const Shape& shape) {
  Shape resolved = shape;
  int open = -1;
  std::int64_t known = 1;
  bool fits = true;
  for (int i = 0; i < shape.dim(); ++i) {
    if (shape[i] == -1 && open < 0) {
      open = i;
    } else if (shape[i] < 0 || __builtin_mul_overflow(known, shape[i], &known)) {
      fits = false;
    }
  }
  if (fits && open >= 0) {
    fits = known > 0 && x.numel() % known == 0;
    if (fits) resolved[open] = x.numel() / known;
  } else if (fits) {
    fits = known == x.numel();
  }
  if (!fits) {
    throw ShapeError(
        format("[reshape] the number of elements differs: {} to {}; expected {} elements; "
               "one size may be -1, unless another is 0",
               to_string(x.shape()), to_string(shape), x.numel()));
  }
  return resolved;
}

// The strides with which x's memory reads as `shape`, if there are any. Neighbouring dimensions of x that lie behind
// one another in memory form a block; each block must be cut up by whole sizes of `shape`.
bool strides_for(const Tensor& x, const Shape& shape, Shape& strides) {
  strides = shape.contiguous_strides();
  if (x.numel() == 0 || x.is_contiguous()) return true;
  int next = shape.dim() - 1;
  std::int64_t block = 1;                                           // elements of the block so far
  std::int64_t inner = x.dim() > 0 ? x.strides()[x.dim() - 1] : 1;  // its smallest stride
  for (int i = x.dim() - 1; i >= 0; --i) {
    block *= x.shape()[i];
    const bool ends = i == 0 || (x.shape()[i - 1] != 1 && x.strides()[i - 1] != block * inner);
    if (!ends) continue;
    std::int64_t filled = 1;
    while (next >= 0 && (filled < block || shape[next] == 1)) {
      strides[next] = filled * inner;
      filled *= shape[next--];
    }
    if (filled != block) return false;
    if (i > 0) {
      block = 1;
      inner = x.strides()[i - 1];
    }
  }
  return next < 0;
}

Tensor reshaped(const char* op, const Tensor& x, const Shape& shape) {
  Shape strides;
  const Tensor base = strides_for(x, shape, strides) ? x : x.detach().contiguous();
  if (!base.is_same(x)) strides = shape.contiguous_strides();
  return record(op, make_view(base, shape, strides, 0), {x},
                [from = x.shape()](const Tensor& g, NeededMask) -> Gradients { return {reshape(g, from)}; });
}

// Counted from the end where negative. kEnd is the size itself.
std::int64_t slice_bound(std::int64_t bound, std::int64_t size) {
  if (bound == kEnd) return size;
  return bound < 0 ? bound + size : bound;
}

}  // namespace

Tensor reshape(const Tensor& x, const Shape& shape) {
  check_defined("reshape", x);
  return reshaped("reshape", x, resolve(x, shape));
}

Tensor flatten(const Tensor& x, int start, int end) {
  check_defined("flatten", x);
  const int rank = x.dim() == 0 ? 1 : x.dim();
  const int first = normalize_dim("flatten", start, rank), last = normalize_dim("flatten", end, rank);
  if (first > last) {
    throw ShapeError(
        format("[flatten] dimensions {} to {} of {}: expected start <= end", start, end, to_string(x.shape())));
  }
  Shape shape;
  if (x.dim() == 0) shape.push_back(1);
  for (int i = 0; i < x.dim(); ++i) {
    if (i <= first || i > last) {
      shape.push_back(x.shape()[i]);
    } else {
      shape[first] *= x.shape()[i];
    }
  }
  return reshaped("flatten", x, shape);
}

Tensor transpose(const Tensor& x, int dim0, int dim1) {
  check_defined("transpose", x);
  const int a = normalize_dim("transpose", dim0, x.dim()), b = normalize_dim("transpose", dim1, x.dim());
  Shape shape = x.shape(), strides = x.strides();
  std::swap(shape[a], shape[b]);
  std::swap(strides[a], strides[b]);
  return record("transpose", make_view(x, shape, strides, 0), {x},
                [a, b](const Tensor& g, NeededMask) -> Gradients { return {transpose(g, a, b)}; });
}

Tensor permute(const Tensor& x, const std::vector<int>& dims) {
  check_defined("permute", x);
  std::vector<int> inverse(static_cast<std::size_t>(x.dim()), -1);
  bool valid = static_cast<int>(dims.size()) == x.dim();
  Shape shape, strides;
  for (std::size_t i = 0; valid && i < dims.size(); ++i) {
    const int from = normalize_dim("permute", dims[i], x.dim());
    int& place = inverse[static_cast<std::size_t>(from)];
    valid = place < 0;
    place = static_cast<int>(i);
    shape.push_back(x.shape()[from]);
    strides.push_back(x.strides()[from]);
  }
  if (!valid) {
    std::vector<std::int64_t> given(dims.begin(), dims.end());
    if (given.size() > kMaxDims) given.resize(kMaxDims);
    throw ShapeError(format("[permute] dimensions {} do not permute {}; expected each of its {} dimensions once",
                            to_string(Shape(given)), to_string(x.shape()), x.dim()));
  }
  return record("permute", make_view(x, shape, strides, 0), {x},
                [inverse](const Tensor& g, NeededMask) -> Gradients { return {permute(g, inverse)}; });
}

Tensor slice(const Tensor& x, int dim, std::int64_t start, std::int64_t end, std::int64_t step) {
  check_defined("slice", x);
  const int d = normalize_dim("slice", dim, x.dim());
  const std::int64_t size = x.shape()[d];
  const std::int64_t first = slice_bound(start, size), last = slice_bound(end, size);
  if (step < 1) throw ValueError(format("[slice] step {}; expected at least 1", step));
  if (first < 0 || first > last || last > size) {
    throw IndexError(
        format("[slice] {} to {} of dimension {} of {}: expected 0 <= start <= end <= {}; kEnd means up "
               "to the last",
               start, end, d, to_string(x.shape()), size));
  }
  Shape shape = x.shape(), strides = x.strides();
  shape[d] = first == last ? 0 : (last - first - 1) / step + 1;  // no sum that a huge step could overflow
  if (shape[d] > 1) strides[d] *= step;
  // An empty slice at the end has no first element.
  const std::int64_t offset = shape[d] == 0 ? 0 : first * x.strides()[d];
  return record("slice", make_view(x, shape, strides, offset), {x},
                [from = x.shape(), d, first, last, step](const Tensor& g, NeededMask) -> Gradients {
                  Tensor whole = zeros(from, g.options());
                  slice(whole, d, first, last, step).copy_(g);
                  return {whole};
                });
}

Tensor select(const Tensor& x, int dim, std::int64_t index) {
  check_defined("select", x);
  const int d = normalize_dim("select", dim, x.dim());
  const std::int64_t size = x.shape()[d], i = index < 0 ? index + size : index;
  if (i < 0 || i >= size) {
    throw IndexError(format("[select] index {} of dimension {} of {}; expected {} <= index < {}", index, d,
                            to_string(x.shape()), -size, size));
  }
  Shape shape = x.shape(), strides = x.strides();
  shape.erase(d);
  strides.erase(d);
  return record("select", make_view(x, shape, strides, i * x.strides()[d]), {x},
                [from = x.shape(), d, i](const Tensor& g, NeededMask) -> Gradients {
                  Tensor whole = zeros(from, g.options());
                  select(whole, d, i).copy_(g);
                  return {whole};
                });
}

Tensor squeeze(const Tensor& x, int dim) {
  check_defined("squeeze", x);
  const int d = normalize_dim("squeeze", dim, x.dim());
  if (x.shape()[d] != 1) {
    throw ShapeError(
        format("[squeeze] dimension {} of {} has size {}; expected 1", d, to_string(x.shape()), x.shape()[d]));
  }
  Shape shape = x.shape(), strides = x.strides();
  shape.erase(d);
  strides.erase(d);
  return record("squeeze", make_view(x, shape, strides, 0), {x},
                [d](const Tensor& g, NeededMask) -> Gradients { return {unsqueeze(g, d)}; });
}

Tensor unsqueeze(const Tensor& x, int dim) {
  check_defined("unsqueeze", x);
  const int d = normalize_dim("unsqueeze", dim, x.dim() + 1);
  Shape shape = x.shape(), strides = x.strides();
  // The stride of a size-1 dimension is never used; this one keeps a contiguous tensor contiguous.
  strides.insert(d, d < x.dim() ? shape[d] * strides[d] : 1);
  shape.insert(d, 1);
  return record("unsqueeze", make_view(x, shape, strides, 0), {x},
                [d](const Tensor& g, NeededMask) -> Gradients { return {squeeze(g, d)}; });
}

Tensor expand(const Tensor& x, const Shape& shape) {
  check_defined("expand", x);
  const int added = shape.dim() - x.dim();
  Shape target = shape, strides = shape;
  bool fits = added >= 0;
  for (int i = 0; fits && i < shape.dim(); ++i) {
    const std::int64_t from = i < added ? 1 : x.shape()[i - added];
    if (shape[i] == -1 && i >= added) target[i] = from;
    fits = target[i] >= 0 && (from == 1 || target[i] == from);
    strides[i] = i < added || target[i] != from ? 0 : x.strides()[i - added];
  }
  if (!fits) {
    throw ShapeError(
        format("[expand] {} does not expand to {}; only sizes of 1 and new leading dimensions can repeat, "
               "and -1 keeps a size",
               to_string(x.shape()), to_string(shape)));
  }
  return record("expand", make_view(x, target, strides, 0), {x},
                [from = x.shape()](const Tensor& g, NeededMask) -> Gradients {
                  // 16-bit types are storage: their sums are formed in f32.
                  const bool narrow = g.dtype() == DType::bf16 || g.dtype() == DType::f16;
                  return {narrow ? sum_to_shape(g.to(DType::f32), from).to(g.dtype()) : sum_to_shape(g, from)};
                });
}

}  // namespace polygrad

#include "ops/copy.h"

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/format.h"
#include "ops/check.h"
#include "ops/view.h"

namespace polygrad {
namespace {

// record() takes at most this many inputs.
constexpr std::size_t kMaxInputs = 64;

void check_list(const char* op, const std::vector<Tensor>& tensors) {
  if (tensors.empty()) throw ValueError(format("[{}] an empty list of tensors; expected at least one", op));
  for (std::size_t i = 0; i < tensors.size(); ++i) check_defined(op, tensors[i], format("tensor {}", i).c_str());
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].dtype() != tensors[0].dtype()) {
      throw DTypeError(format("[{}] dtypes differ: tensor 0 is {}, tensor {} is {}; convert one with to()", op,
                              to_string(tensors[0].dtype()), i, to_string(tensors[i].dtype())));
    }
    if (tensors[i].device() != tensors[0].device()) {
      throw DeviceError(format("[{}] devices differ: tensor 0 is on {}, tensor {} on {}; move one with to()", op,
                               to_string(tensors[0].device()), i, to_string(tensors[i].device())));
    }
  }
}

// Whether a and b agree in all sizes but that of dimension `free`.
bool same_but(const Shape& a, const Shape& b, int free) {
  if (a.dim() != b.dim()) return false;
  for (int i = 0; i < a.dim(); ++i) {
    if (i != free && a[i] != b[i]) return false;
  }
  return true;
}

// Copies `from` into `to`, each dimension i of it moved on by shifts[i] >= 0: the two parts of a dimension change
// places, one dimension after the other.
void copy_rolled(Tensor to, const Tensor& from, const std::vector<std::int64_t>& shifts, int dim) {
  while (dim < from.dim() && shifts[static_cast<std::size_t>(dim)] == 0) ++dim;
  if (dim == from.dim()) {
    to.copy_(from);
    return;
  }
  const std::int64_t size = from.shape()[dim], shift = shifts[static_cast<std::size_t>(dim)];
  copy_rolled(slice(to, dim, shift, size), slice(from, dim, 0, size - shift), shifts, dim + 1);
  copy_rolled(slice(to, dim, 0, shift), slice(from, dim, size - shift, size), shifts, dim + 1);
}

}  // namespace

Tensor cat(const std::vector<Tensor>& tensors, int dim) {
  check_list("cat", tensors);
  if (tensors.size() > kMaxInputs) {  // cat of cats
    std::vector<Tensor> groups;
    for (std::size_t i = 0; i < tensors.size(); i += kMaxInputs) {
      const std::size_t end = std::min(i + kMaxInputs, tensors.size());
      groups.push_back(cat(
          {tensors.begin() + static_cast<std::ptrdiff_t>(i), tensors.begin() + static_cast<std::ptrdiff_t>(end)}, dim));
    }
    return cat(groups, dim);
  }
  const int d = normalize_dim("cat", dim, tensors[0].dim());
  Shape shape = tensors[0].shape();
  std::vector<std::int64_t> ends{shape[d]};
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    if (!same_but(tensors[i].shape(), shape, d)) {
      throw ShapeError(format("[cat] shapes differ outside dimension {}: tensor 0 {}, tensor {} {}", d,
                              to_string(tensors[0].shape()), i, to_string(tensors[i].shape())));
    }
    ends.push_back(ends.back() + tensors[i].shape()[d]);
  }
  shape[d] = ends.back();
  Tensor y = Tensor::empty(shape, tensors[0].options());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    slice(y, d, i == 0 ? 0 : ends[i - 1], ends[i]).copy_(tensors[i].detach());
  }
  return record("cat", y, tensors, [d, ends](const Tensor& g, NeededMask needed) -> Gradients {
    Gradients gradients(ends.size());
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (needed[i]) gradients[i] = slice(g, d, i == 0 ? 0 : ends[i - 1], ends[i]);
    }
    return gradients;
  });
}

Tensor stack(const std::vector<Tensor>& tensors, int dim) {
  check_list("stack", tensors);
  const int d = normalize_dim("stack", dim, tensors[0].dim() + 1);
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].shape() != tensors[0].shape()) {
      throw ShapeError(format("[stack] shapes differ: tensor 0 {}, tensor {} {}", to_string(tensors[0].shape()), i,
                              to_string(tensors[i].shape())));
    }
  }
  if (tensors.size() > kMaxInputs) {
    std::vector<Tensor> rows;
    for (const Tensor& tensor : tensors) rows.push_back(unsqueeze(tensor, d));
    return cat(rows, d);
  }
  Shape shape = tensors[0].shape();
  shape.insert(d, static_cast<std::int64_t>(tensors.size()));
  Tensor y = Tensor::empty(shape, tensors[0].options());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    select(y, d, static_cast<std::int64_t>(i)).copy_(tensors[i].detach());
  }
  return record("stack", y, tensors, [d, count = tensors.size()](const Tensor& g, NeededMask needed) -> Gradients {
    Gradients gradients(count);
    for (std::size_t i = 0; i < count; ++i) {
      if (needed[i]) gradients[i] = select(g, d, static_cast<std::int64_t>(i));
    }
    return gradients;
  });
}

std::vector<Tensor> split(const Tensor& x, std::int64_t size, int dim) {
  check_defined("split", x);
  const int d = normalize_dim("split", dim, x.dim());
  if (size < 1) throw ValueError(format("[split] pieces of {}; expected at least 1", size));
  const std::int64_t total = x.shape()[d];
  std::vector<Tensor> pieces;
  for (std::int64_t start = 0; start < total || pieces.empty(); start += size) {
    const std::int64_t end = total - start > size ? start + size : total;
    pieces.push_back(record("split", slice(x.detach(), d, start, end), {x},
                            [from = x.shape(), d, start, end](const Tensor& g, NeededMask) -> Gradients {
                              Tensor whole = zeros(from, g.options());
                              slice(whole, d, start, end).copy_(g);
                              return {whole};
                            }));
    if (end == total) break;  // start + size might overflow
  }
  return pieces;
}

Tensor pad(const Tensor& x, const std::vector<std::pair<std::int64_t, std::int64_t>>& amounts, double value) {
  check_defined("pad", x);
  if (static_cast<int>(amounts.size()) != x.dim()) {
    throw ShapeError(format("[pad] {} pairs for {}; expected {{before, after}} for each of its {} dimensions",
                            amounts.size(), to_string(x.shape()), x.dim()));
  }
  Shape shape = x.shape();
  for (int i = 0; i < x.dim(); ++i) {
    const auto [before, after] = amounts[static_cast<std::size_t>(i)];
    if (before < 0 || after < 0) {
      throw ValueError(
          format("[pad] {{{}, {}}} for dimension {}; expected no negative count; use slice to cut", before, after, i));
    }
    if (__builtin_add_overflow(shape[i], before, &shape[i]) || __builtin_add_overflow(shape[i], after, &shape[i])) {
      throw ShapeError(format("[pad] {{{}, {}}} for dimension {} of {}: the size exceeds 64 bits", before, after, i,
                              to_string(x.shape())));
    }
  }
  // The part of a padded tensor where x lies.
  const auto inside = [amounts, sizes = x.shape()](Tensor padded) {
    for (int i = 0; i < sizes.dim(); ++i) {
      const std::int64_t before = amounts[static_cast<std::size_t>(i)].first;
      padded = slice(padded, i, before, before + sizes[i]);
    }
    return padded;
  };
  Tensor y = full(shape, value, x.options());
  inside(y).copy_(x.detach());
  return record("pad", y, {x}, [inside](const Tensor& g, NeededMask) -> Gradients { return {inside(g)}; });
}

Tensor roll(const Tensor& x, const std::vector<std::int64_t>& shifts, const std::vector<int>& dims) {
  check_defined("roll", x);
  if (shifts.size() != dims.size()) {
    throw ValueError(format("[roll] {} shifts for {} dimensions; expected one for each", shifts.size(), dims.size()));
  }
  std::vector<std::int64_t> forward(static_cast<std::size_t>(x.dim()), 0);
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const int d = normalize_dim("roll", dims[i], x.dim());
    const std::int64_t size = x.shape()[d];
    std::int64_t& shift = forward[static_cast<std::size_t>(d)];
    if (size > 0) shift = ((shift + shifts[i] % size) % size + size) % size;
  }
  Tensor y = Tensor::empty(x.shape(), x.options());
  copy_rolled(y, x.detach(), forward, 0);
  return record("roll", y, {x}, [forward](const Tensor& g, NeededMask) -> Gradients {
    Tensor gx = Tensor::empty(g.shape(), g.options());
    std::vector<std::int64_t> backward = forward;
    for (int i = 0; i < g.dim(); ++i) {
      std::int64_t& shift = backward[static_cast<std::size_t>(i)];
      if (shift > 0) shift = g.shape()[i] - shift;
    }
    copy_rolled(gx, g, backward, 0);
    return {gx};
  });
}

}  // namespace polygrad

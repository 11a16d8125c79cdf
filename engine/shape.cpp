#include "engine/shape.h"

#include <limits>

#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

namespace {

void check_dims(std::size_t dims) {
  if (dims > kMaxDims) {
    throw ShapeError(format("[shape] {} dimensions; at most {} are supported", dims, kMaxDims));
  }
}

}  // namespace

Shape::Shape(std::initializer_list<std::int64_t> sizes) {
  check_dims(sizes.size());
  for (const std::int64_t size : sizes) sizes_[dim_++] = size;
}

Shape::Shape(const std::vector<std::int64_t>& sizes) {
  check_dims(sizes.size());
  for (const std::int64_t size : sizes) sizes_[dim_++] = size;
}

std::int64_t Shape::at(int i) const { return sizes_[normalize_dim("shape", i, dim_)]; }

void Shape::push_back(std::int64_t size) { insert(dim_, size); }

void Shape::insert(int position, std::int64_t size) {
  check_dims(static_cast<std::size_t>(dim_) + 1);
  if (position < 0 || position > dim_) {
    throw IndexError(format("[shape] insert at position {} of a shape with {} dimensions", position, dim_));
  }
  for (int i = dim_; i > position; --i) sizes_[i] = sizes_[i - 1];
  sizes_[position] = size;
  ++dim_;
}

void Shape::erase(int position) {
  position = normalize_dim("shape", position, dim_);
  for (int i = position; i + 1 < dim_; ++i) sizes_[i] = sizes_[i + 1];
  sizes_[--dim_] = 0;
}

std::int64_t Shape::numel() const {
  std::int64_t count = 1;
  bool zero = false;
  for (const std::int64_t size : *this) {
    if (size < 0) throw ShapeError(format("[shape] negative size in {}", to_string(*this)));
    if (size == 0) {
      zero = true;
    } else if (__builtin_mul_overflow(count, size, &count)) {
      throw ShapeError(format("[shape] the number of elements of {} overflows 64 bits", to_string(*this)));
    }
  }
  return zero ? 0 : count;
}

Shape Shape::contiguous_strides() const {
  Shape strides;
  strides.dim_ = dim_;
  std::int64_t stride = 1;
  for (int i = dim_ - 1; i >= 0; --i) {
    strides.sizes_[i] = stride;
    stride *= sizes_[i] > 1 ? sizes_[i] : 1;
  }
  return strides;
}

bool Shape::operator==(const Shape& other) const {
  if (dim_ != other.dim_) return false;
  for (int i = 0; i < dim_; ++i) {
    if (sizes_[i] != other.sizes_[i]) return false;
  }
  return true;
}

std::string to_string(const Shape& shape) {
  std::string text = "(";
  for (int i = 0; i < shape.dim(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + ")";
}

Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b) {
  Shape result;
  const int dims = a.dim() > b.dim() ? a.dim() : b.dim();
  for (int i = 0; i < dims; ++i) {
    const int ia = i - (dims - a.dim()), ib = i - (dims - b.dim());
    const std::int64_t sa = ia < 0 ? 1 : a[ia], sb = ib < 0 ? 1 : b[ib];
    if (sa != sb && sa != 1 && sb != 1) {
      throw ShapeError(format("[{}] shapes do not broadcast: {} and {}; expected equal sizes, or 1, from the right", op,
                              to_string(a), to_string(b)));
    }
    result.push_back(sa == 1 ? sb : sa);
  }
  return result;
}

int normalize_dim(const char* op, int dim, int dims) {
  if (dim < -dims || dim >= dims) {
    throw IndexError(dims == 0
                         ? format("[{}] dimension {} of a scalar, which has none", op, dim)
                         : format("[{}] dimension {} is out of range: expected {} to {}", op, dim, -dims, dims - 1));
  }
  return dim < 0 ? dim + dims : dim;
}

}  // namespace polygrad

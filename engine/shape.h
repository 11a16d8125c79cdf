// Shape: the sizes (or strides) of a tensor, stored inline.
//
// Where this stands: below tensor.h. At most kMaxDims dimensions, 64-bit, no heap allocation.
// Read next: dtype.h, device.h, tensor.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace polygrad {

// The largest number of dimensions a tensor may have.
inline constexpr int kMaxDims = 8;

class Shape {
 public:
  Shape() = default;  // the shape of a scalar: no dimensions, one element
  // Throw ShapeError for more than kMaxDims dimensions. Negative sizes are refused where a tensor is made.
  Shape(std::initializer_list<std::int64_t> sizes);  // NOLINT: implicit, so that zeros({2, 3}) reads well
  explicit Shape(const std::vector<std::int64_t>& sizes);

  int dim() const { return dim_; }
  std::size_t size() const { return static_cast<std::size_t>(dim_); }
  bool empty() const { return dim_ == 0; }

  // Unchecked access, 0 <= i < dim().
  std::int64_t operator[](int i) const { return sizes_[i]; }
  std::int64_t& operator[](int i) { return sizes_[i]; }
  // Checked access; negative indices count from the end. Throws IndexError.
  std::int64_t at(int i) const;
  std::int64_t back() const { return at(-1); }

  const std::int64_t* begin() const { return sizes_; }
  const std::int64_t* end() const { return sizes_ + dim_; }

  void push_back(std::int64_t size);
  void insert(int position, std::int64_t size);
  void erase(int position);

  // The product of all sizes. Throws ShapeError on a negative size, or where the sizes other than 0 overflow 64 bits.
  std::int64_t numel() const;
  // Row-major strides, in elements.
  Shape contiguous_strides() const;

  std::vector<std::int64_t> vec() const { return {begin(), end()}; }
  bool operator==(const Shape& other) const;
  bool operator!=(const Shape& other) const { return !(*this == other); }

 private:
  std::int64_t sizes_[kMaxDims] = {};
  int dim_ = 0;
};

// "(2, 3)", "()" for a scalar.
std::string to_string(const Shape& shape);

// The shape both broadcast to by the usual rule (aligned at the right; equal, or one of them 1).
// Throws ShapeError naming `op` and both shapes.
Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b);

// A dimension counted from the end where negative: 0 <= result < dim. Throws IndexError naming `op`.
int normalize_dim(const char* op, int dim, int dims);

}  // namespace polygrad

#include "tests/reference/matmul.h"

#include <algorithm>
#include <cmath>

namespace reference {
namespace {

using Index = std::int64_t;

Index rank(const Array& x) { return static_cast<Index>(x.shape.size()); }

// x's size at dimension d counted from the end (1: the last); missing dimensions have size 1.
Index size_from_end(const Array& x, Index d) {
  return d <= rank(x) ? x.shape[static_cast<std::size_t>(rank(x) - d)] : 1;
}

// The number, within x, of the matrix that meets matrix `index` of the broadcast batch `sizes`.
Index matrix_of(const Array& x, const std::vector<Index>& sizes, Index index) {
  const Index dims = static_cast<Index>(sizes.size());
  Index number = 0, stride = 1;
  for (Index d = dims - 1; d >= 0; --d) {
    const Index size = sizes[static_cast<std::size_t>(d)], own = size_from_end(x, dims - d + 2);
    if (own > 1) number += index % size * stride;
    stride *= own;
    index /= size;
  }
  return number;
}

}  // namespace

Array matmul(const Array& a, const Array& b) {
  const Index m = size_from_end(a, 2), k = size_from_end(a, 1), n = size_from_end(b, 1);
  std::vector<Index> batch;
  for (Index d = std::max(rank(a), rank(b)); d > 2; --d) {
    const Index size_a = size_from_end(a, d), size_b = size_from_end(b, d);
    batch.push_back(size_a == 1 ? size_b : size_a);
  }
  std::vector<Index> shape = batch;
  shape.push_back(m);
  shape.push_back(n);
  Array c(shape);
  const Index matrices = static_cast<Index>(Array::count(batch));
  for (Index matrix = 0; matrix < matrices; ++matrix) {
    const double* left = a.data.data() + matrix_of(a, batch, matrix) * m * k;
    const double* right = b.data.data() + matrix_of(b, batch, matrix) * k * n;
    double* out = c.data.data() + matrix * m * n;
    for (Index i = 0; i < m; ++i) {
      for (Index j = 0; j < n; ++j) {
        double sum = 0;
        for (Index l = 0; l < k; ++l) sum += left[i * k + l] * right[l * n + j];
        out[i * n + j] = sum;
      }
    }
  }
  return c;
}

Array linear(const Array& x, const Array& weight, const Array& bias) {
  const Index out = weight.shape[0], in = weight.shape[1];
  std::vector<Index> shape = x.shape;
  shape.back() = out;
  Array y(shape);
  const Index rows = y.numel() / std::max<Index>(1, out);
  for (Index i = 0; i < rows; ++i) {
    for (Index j = 0; j < out; ++j) {
      double sum = bias.data.empty() ? 0.0 : bias.data[static_cast<std::size_t>(j)];
      for (Index l = 0; l < in; ++l) {
        sum += x.data[static_cast<std::size_t>(i * in + l)] * weight.data[static_cast<std::size_t>(j * in + l)];
      }
      y.data[static_cast<std::size_t>(i * out + j)] = sum;
    }
  }
  return y;
}

Array linear_gelu(const Array& x, const Array& weight, const Array& bias) {
  Array y = linear(x, weight, bias);
  for (double& value : y.data) value *= 0.5 * (1 + std::erf(value / std::sqrt(2.0)));
  return y;
}

}  // namespace reference

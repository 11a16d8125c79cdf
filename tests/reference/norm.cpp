#include "tests/reference/norm.h"

#include <cmath>

namespace reference {

Array layer_norm(const Array& x, const Array& weight, const Array& bias, double eps) {
  const std::size_t n = static_cast<std::size_t>(x.shape.back());
  Array y = x;
  for (std::size_t first = 0; first < x.data.size(); first += n) {
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < n; ++i) mean += x.data[first + i] / static_cast<double>(n);
    for (std::size_t i = 0; i < n; ++i) variance += std::pow(x.data[first + i] - mean, 2) / static_cast<double>(n);
    for (std::size_t i = 0; i < n; ++i) {
      double value = (x.data[first + i] - mean) / std::sqrt(variance + eps);
      if (!weight.shape.empty()) value *= weight.data[i];
      if (!bias.shape.empty()) value += bias.data[i];
      y.data[first + i] = value;
    }
  }
  return y;
}

}  // namespace reference

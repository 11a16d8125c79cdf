#include "tests/reference/softmax.h"

#include <algorithm>
#include <cmath>

namespace reference {
namespace {

Array along(const Array& x, int dim, bool logarithm) {
  const std::size_t axis = static_cast<std::size_t>(dim), n = static_cast<std::size_t>(x.shape[axis]);
  std::size_t inner = 1;
  for (std::size_t d = axis + 1; d < x.shape.size(); ++d) inner *= static_cast<std::size_t>(x.shape[d]);
  Array y = x;
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    const std::size_t first = i / (n * inner) * n * inner + i % inner;
    double largest = x.data[first];
    for (std::size_t j = 0; j < n; ++j) largest = std::max(largest, x.data[first + j * inner]);
    double sum = 0;
    for (std::size_t j = 0; j < n; ++j) sum += std::exp(x.data[first + j * inner] - largest);
    y.data[i] = logarithm ? x.data[i] - largest - std::log(sum) : std::exp(x.data[i] - largest) / sum;
  }
  return y;
}

}  // namespace

Array softmax(const Array& x, int dim) { return along(x, dim, false); }
Array log_softmax(const Array& x, int dim) { return along(x, dim, true); }

}  // namespace reference

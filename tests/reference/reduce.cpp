#include "tests/reference/reduce.h"

#include <algorithm>
#include <numeric>

namespace reference {
namespace {

bool contains(const std::vector<int>& dims, std::size_t d) {
  return std::find(dims.begin(), dims.end(), static_cast<int>(d)) != dims.end();
}

// For each element of x, the position in an array whose dimensions `dims` have size 1.
std::vector<std::size_t> targets(const Array& x, const std::vector<int>& dims) {
  std::vector<std::size_t> positions(x.data.size());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    std::size_t rest = i, position = 0, step = 1;
    for (std::size_t d = x.shape.size(); d-- > 0;) {
      const std::size_t size = static_cast<std::size_t>(x.shape[d]), index = rest % size;
      rest /= size;
      if (contains(dims, d)) continue;
      position += index * step;
      step *= size;
    }
    positions[i] = position;
  }
  return positions;
}

Array reduced(const Array& x, const std::vector<int>& dims, bool keepdim, double value) {
  std::vector<std::int64_t> shape;
  for (std::size_t d = 0; d < x.shape.size(); ++d) {
    if (!contains(dims, d)) shape.push_back(x.shape[d]);
    if (contains(dims, d) && keepdim) shape.push_back(1);
  }
  return Array(shape, value);
}

// The indices of a row in descending order of value, the first of equals first.
std::vector<std::int64_t> descending(const double* row, std::int64_t n) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [row](std::int64_t a, std::int64_t b) { return row[a] > row[b]; });
  return order;
}

Array topk(const Array& x, std::int64_t k, bool values) {
  const std::int64_t n = x.shape.back();
  Array out = x;
  out.shape.back() = k;
  out.data.clear();
  for (std::int64_t first = 0; first < x.numel(); first += n) {
    const std::vector<std::int64_t> order = descending(x.data.data() + first, n);
    for (std::int64_t j = 0; j < k; ++j) {
      const std::int64_t at = order[static_cast<std::size_t>(j)];
      out.data.push_back(values ? x.data[static_cast<std::size_t>(first + at)] : static_cast<double>(at));
    }
  }
  return out;
}

}  // namespace

Array sum(const Array& x, const std::vector<int>& dims, bool keepdim) {
  Array out = reduced(x, dims, keepdim, 0);
  const std::vector<std::size_t> to = targets(x, dims);
  for (std::size_t i = 0; i < x.data.size(); ++i) out.data[to[i]] += x.data[i];
  return out;
}

Array mean(const Array& x, const std::vector<int>& dims, bool keepdim) {
  Array out = sum(x, dims, keepdim);
  for (double& v : out.data) v *= static_cast<double>(out.data.size()) / static_cast<double>(x.data.size());
  return out;
}

Array sum_to_shape(const Array& x, const std::vector<std::int64_t>& shape) {
  std::vector<int> dims;
  const std::size_t extra = x.shape.size() - shape.size();
  for (std::size_t d = 0; d < x.shape.size(); ++d) {
    if (d < extra || shape[d - extra] != x.shape[d]) dims.push_back(static_cast<int>(d));
  }
  Array out = sum(x, dims, false);
  out.shape = shape;
  return out;
}

Array amax(const Array& x, int dim, bool keepdim) {
  Array out = reduced(x, {dim}, keepdim, -1e300);
  const std::vector<std::size_t> to = targets(x, {dim});
  for (std::size_t i = 0; i < x.data.size(); ++i) out.data[to[i]] = std::max(out.data[to[i]], x.data[i]);
  return out;
}

Array argmax(const Array& x, int dim) {
  const Array largest = amax(x, dim, false);
  Array out = reduced(x, {dim}, false, -1);
  const std::vector<std::size_t> to = targets(x, {dim});
  std::size_t inner = 1;
  for (std::size_t d = static_cast<std::size_t>(dim) + 1; d < x.shape.size(); ++d) {
    inner *= static_cast<std::size_t>(x.shape[d]);
  }
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    if (out.data[to[i]] < 0 && x.data[i] == largest.data[to[i]]) {
      out.data[to[i]] =
          static_cast<double>(i / inner % static_cast<std::size_t>(x.shape[static_cast<std::size_t>(dim)]));
    }
  }
  return out;
}

Array topk_values(const Array& x, std::int64_t k) { return topk(x, k, true); }
Array topk_indices(const Array& x, std::int64_t k) { return topk(x, k, false); }

}  // namespace reference

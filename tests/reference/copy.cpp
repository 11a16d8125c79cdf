#include "tests/reference/copy.h"

#include "tests/reference/view.h"

namespace reference {

Array cat(const std::vector<Array>& arrays, int dim) {
  const auto d = static_cast<std::size_t>(dim);
  Index shape = arrays[0].shape;
  shape[d] = 0;
  for (const Array& x : arrays) shape[d] += x.shape[d];
  Array y(shape);
  std::int64_t offset = 0;
  for (const Array& x : arrays) {
    Index index(shape.size(), 0);
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      Index target = index;
      target[d] += offset;
      at(y, target) = at(x, index);
      next(index, x.shape);
    }
    offset += x.shape[d];
  }
  return y;
}

Array stack(const std::vector<Array>& arrays, int dim) {
  std::vector<Array> rows = arrays;
  for (Array& row : rows) row.shape.insert(row.shape.begin() + dim, 1);
  return cat(rows, dim);
}

Array pad(const Array& x, const std::vector<std::pair<std::int64_t, std::int64_t>>& amounts, double value) {
  Index shape = x.shape;
  for (std::size_t i = 0; i < shape.size(); ++i) shape[i] += amounts[i].first + amounts[i].second;
  Array y(shape, value);
  Index index(shape.size(), 0);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    Index target = index;
    for (std::size_t k = 0; k < target.size(); ++k) target[k] += amounts[k].first;
    at(y, target) = at(x, index);
    next(index, x.shape);
  }
  return y;
}

Array roll(const Array& x, const std::vector<std::int64_t>& shifts, const std::vector<int>& dims) {
  Array y(x.shape);
  Index index(x.shape.size(), 0);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    Index target = index;
    for (std::size_t k = 0; k < dims.size(); ++k) {
      std::int64_t& t = target[static_cast<std::size_t>(dims[k])];
      const std::int64_t size = x.shape[static_cast<std::size_t>(dims[k])];
      t += shifts[k];
      while (t < 0) t += size;
      while (t >= size) t -= size;
    }
    at(y, target) = at(x, index);
    next(index, x.shape);
  }
  return y;
}

}  // namespace reference

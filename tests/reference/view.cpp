#include "tests/reference/view.h"

namespace reference {
namespace {

std::size_t place(const Index& shape, const Index& index) {
  std::int64_t result = 0;
  for (std::size_t i = 0; i < shape.size(); ++i) result = result * shape[i] + index[i];
  return static_cast<std::size_t>(result);
}

// An array whose element at each index is x's at source(index).
template <class Source>
Array from_source(const Array& x, const Index& shape, const Source& source) {
  Array y(shape);
  Index index(shape.size(), 0);
  if (y.numel() == 0) return y;
  do at(y, index) = at(x, source(index));
  while (next(index, shape));
  return y;
}

}  // namespace

bool next(Index& index, const Index& shape) {
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (++index[i] < shape[i]) return true;
    index[i] = 0;
  }
  return false;
}

double& at(Array& x, const Index& index) { return x.data[place(x.shape, index)]; }
double at(const Array& x, const Index& index) { return x.data[place(x.shape, index)]; }

Array reshape(const Array& x, const Index& shape) {
  Array y = x;
  y.shape = shape;
  return y;
}

Array permute(const Array& x, const std::vector<int>& dims) {
  Index shape;
  for (int dim : dims) shape.push_back(x.shape[static_cast<std::size_t>(dim)]);
  return from_source(x, shape, [&](const Index& index) {
    Index source(index.size());
    for (std::size_t i = 0; i < dims.size(); ++i) source[static_cast<std::size_t>(dims[i])] = index[i];
    return source;
  });
}

Array slice(const Array& x, int dim, std::int64_t start, std::int64_t end, std::int64_t step) {
  const auto d = static_cast<std::size_t>(dim);
  Index shape = x.shape;
  shape[d] = 0;
  for (std::int64_t i = start; i < end; i += step) ++shape[d];
  return from_source(x, shape, [&](Index index) {
    index[d] = start + index[d] * step;
    return index;
  });
}

Array select(const Array& x, int dim, std::int64_t index) {
  Array row = slice(x, dim, index, index + 1, 1);
  row.shape.erase(row.shape.begin() + dim);
  return row;
}

Array expand(const Array& x, const Index& shape) {
  const std::size_t added = shape.size() - x.shape.size();
  return from_source(x, shape, [&](const Index& index) {
    Index source(x.shape.size());
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = x.shape[i] == 1 ? 0 : index[i + added];
    return source;
  });
}

}  // namespace reference

#include "tests/reference/index.h"

#include "tests/reference/view.h"

namespace reference {

Array gather(const Array& x, int dim, const Array& index) {
  const auto d = static_cast<std::size_t>(dim);
  Array y(index.shape);
  Index place(index.shape.size(), 0);
  for (std::int64_t i = 0; i < y.numel(); ++i) {
    Index source = place;
    source[d] = static_cast<std::int64_t>(at(index, place));
    at(y, place) = at(x, source);
    next(place, y.shape);
  }
  return y;
}

Array index_select(const Array& x, int dim, const Array& ids) {
  const auto d = static_cast<std::size_t>(dim);
  Index shape = x.shape;
  shape[d] = ids.numel();
  Array y(shape);
  Index place(shape.size(), 0);
  for (std::int64_t i = 0; i < y.numel(); ++i) {
    Index source = place;
    source[d] = static_cast<std::int64_t>(ids.data[static_cast<std::size_t>(place[d])]);
    at(y, place) = at(x, source);
    next(place, shape);
  }
  return y;
}

Array embedding(const Array& weight, const Array& ids) {
  Array y = index_select(weight, 0, reshape(ids, {ids.numel()}));
  Index shape = ids.shape;
  shape.push_back(weight.shape[1]);
  return reshape(y, shape);
}

Array one_hot(const Array& ids, std::int64_t classes) {
  Index shape = ids.shape;
  shape.push_back(classes);
  Array y(shape);
  for (std::size_t i = 0; i < ids.data.size(); ++i) {
    for (std::int64_t c = 0; c < classes; ++c) {
      y.data[i * static_cast<std::size_t>(classes) + static_cast<std::size_t>(c)] =
          ids.data[i] == static_cast<double>(c) ? 1 : 0;
    }
  }
  return y;
}

Array masked_fill(const Array& x, const Array& mask, double value) {
  const Array wide = expand(mask, x.shape);
  Array y = x;
  for (std::size_t i = 0; i < y.data.size(); ++i) {
    if (wide.data[i] != 0) y.data[i] = value;
  }
  return y;
}

}  // namespace reference

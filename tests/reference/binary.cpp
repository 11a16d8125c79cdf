#include "tests/reference/binary.h"

#include <algorithm>
#include <stdexcept>

namespace reference {
namespace {

double value(const std::string& name, double a, double b) {
  if (name == "add") return a + b;
  if (name == "sub") return a - b;
  if (name == "mul") return a * b;
  if (name == "div") return a / b;
  if (name == "maximum") return a > b ? a : b;
  if (name == "minimum") return a < b ? a : b;
  if (name == "eq") return a == b;
  if (name == "ne") return a != b;
  if (name == "lt") return a < b;
  if (name == "le") return a <= b;
  if (name == "gt") return a > b;
  if (name == "ge") return a >= b;
  throw std::invalid_argument("no reference for " + name);
}

// The element of x at an index of the broadcast shape: dimensions are aligned at the right, a size of 1 stands still.
double at(const Array& x, const std::vector<std::int64_t>& index) {
  std::int64_t position = 0;
  const std::size_t skipped = index.size() - x.shape.size();
  for (std::size_t d = 0; d < x.shape.size(); ++d) {
    position = position * x.shape[d] + (x.shape[d] == 1 ? 0 : index[skipped + d]);
  }
  return x.data[static_cast<std::size_t>(position)];
}

}  // namespace

Array binary(const std::string& name, const Array& a, const Array& b) {
  const std::size_t dims = std::max(a.shape.size(), b.shape.size());
  std::vector<std::int64_t> shape(dims, 1);
  for (const Array* x : {&a, &b}) {
    for (std::size_t d = 0; d < x->shape.size(); ++d) {
      std::int64_t& size = shape[dims - x->shape.size() + d];
      if (size != 1 && x->shape[d] != 1 && size != x->shape[d]) throw std::invalid_argument("shapes do not broadcast");
      if (size == 1) size = x->shape[d];
    }
  }
  Array out(shape);
  std::vector<std::int64_t> index(dims, 0);
  for (double& v : out.data) {
    v = value(name, at(a, index), at(b, index));
    for (std::size_t d = dims; d-- > 0;) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
  return out;
}

}  // namespace reference

// Array: the naive references' own container. Row-major f64; it knows nothing of the engine.
#pragma once

#include <cstdint>
#include <vector>

namespace reference {

struct Array {
  std::vector<std::int64_t> shape;
  std::vector<double> data;

  Array() = default;
  explicit Array(std::vector<std::int64_t> s, double value = 0) : shape(std::move(s)), data(count(shape), value) {}
  std::int64_t numel() const { return static_cast<std::int64_t>(data.size()); }
  static std::size_t count(const std::vector<std::int64_t>& s) {
    std::size_t n = 1;
    for (std::int64_t v : s) n *= static_cast<std::size_t>(v);
    return n;
  }
};

}  // namespace reference

// A handful of operations in f64, as short as they can be: the engine's tests need some, and may not use ops/.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "engine/autograd.h"
#include "engine/tensor.h"

namespace polygrad::tiny {

inline Tensor map(const Tensor& x, const std::function<double(double)>& f) {
  std::vector<double> values = x.to_vector<double>();
  for (double& value : values) value = f(value);
  return Tensor::from_vector(values, x.shape());
}

inline Tensor zip(const Tensor& x, const Tensor& y, const std::function<double(double, double)>& f) {
  std::vector<double> values = x.to_vector<double>();
  const std::vector<double> others = y.to_vector<double>();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = f(values[i], others[i]);
  return Tensor::from_vector(values, x.shape());
}

inline Tensor product(const Tensor& x, const Tensor& y) {
  return zip(x, y, [](double a, double b) { return a * b; });
}

// The rule sends one and the same tensor to both inputs, as the engine allows.
inline Tensor add(const Tensor& x, const Tensor& y) {
  return record("add", zip(x, y, std::plus<>()), {x, y}, [](const Tensor& g, NeededMask) { return Gradients{g, g}; });
}

inline Tensor mul(const Tensor& x, const Tensor& y) {
  return record(
      "mul", product(x, y), {x, y},
      [a = SavedTensor(x, "x"), b = SavedTensor(y, "y")](const Tensor& g, NeededMask needed) {
        return Gradients{needed[0] ? product(g, b.get()) : Tensor(), needed[1] ? product(g, a.get()) : Tensor()};
      });
}

inline Tensor scale(const Tensor& x, double factor) {
  const auto times = [factor](const Tensor& t) { return map(t, [factor](double v) { return v * factor; }); };
  return record("scale", times(x), {x}, [times](const Tensor& g, NeededMask) { return Gradients{times(g)}; });
}

inline Tensor sum(const Tensor& x) {
  double total = 0;
  for (const double value : x.to_vector<double>()) total += value;
  return record("sum", Tensor::from_vector(std::vector<double>{total}, {}), {x},
                [shape = x.shape()](const Tensor& g, NeededMask) {
                  // Every element gets the same place in memory: a gradient may have any strides.
                  return Gradients{make_view(g, shape, Shape(std::vector<std::int64_t>(shape.size(), 0)), 0)};
                });
}

// A matrix seen with its axes exchanged.
inline Tensor transpose(const Tensor& x) {
  const auto exchanged = [](const Tensor& t) {
    return make_view(t, {t.size(1), t.size(0)}, {t.strides()[1], t.strides()[0]}, 0);
  };
  return record("transpose", exchanged(x), {x},
                [exchanged](const Tensor& g, NeededMask) { return Gradients{exchanged(g)}; });
}

// A leaf with these values.
inline Tensor leaf(std::vector<double> values, const Shape& shape) { return Tensor::from_vector(values, shape, true); }
inline Tensor leaf(double value) { return leaf(std::vector<double>{value}, {}); }

}  // namespace polygrad::tiny

#include "tests/reference/loss.h"

#include <algorithm>
#include <cmath>

namespace reference {
namespace {

// One row of K logits as log-probabilities, with the weight of each class.
struct Row {
  std::vector<double> log_p, weight;
  std::size_t first, stride;  // where the row lies in (N, K, places)
};

std::size_t places_of(const Array& logits) {
  std::size_t places = 1;
  for (std::size_t i = 2; i < logits.shape.size(); ++i) places *= static_cast<std::size_t>(logits.shape[i]);
  return places;
}

Row row_of(const Array& logits, std::size_t row, const LossOptions& options) {
  const auto classes = static_cast<std::size_t>(logits.shape[1]);
  const std::size_t places = places_of(logits);
  Row result;
  result.first = row / places * classes * places + row % places;
  result.stride = places;
  double largest = -INFINITY, sum = 0;
  for (std::size_t k = 0; k < classes; ++k) largest = std::max(largest, logits.data[result.first + k * places]);
  for (std::size_t k = 0; k < classes; ++k) sum += std::exp(logits.data[result.first + k * places] - largest);
  for (std::size_t k = 0; k < classes; ++k) {
    result.log_p.push_back(logits.data[result.first + k * places] - largest - std::log(sum));
    result.weight.push_back(options.class_weight.data.empty() ? 1 : options.class_weight.data[k]);
  }
  return result;
}

Array reduced(const Array& losses, Reduce reduce, double divisor) {
  if (reduce == Reduce::none) return losses;
  Array y(std::vector<std::int64_t>{});
  for (double loss : losses.data) y.data[0] += loss;
  if (reduce == Reduce::mean) y.data[0] = divisor == 0 ? 0 : y.data[0] / divisor;
  return y;
}

}  // namespace

Array cross_entropy(const Array& logits, const Array& target, const LossOptions& options) {
  Array losses(target.shape);
  double divisor = 0;
  for (std::size_t i = 0; i < target.data.size(); ++i) {
    const auto label = static_cast<std::int64_t>(target.data[i]);
    if (label == options.ignored) continue;
    const Row row = row_of(logits, i, options);
    const auto own = static_cast<std::size_t>(label);
    losses.data[i] = -(1 - options.smoothing) * row.weight[own] * row.log_p[own];
    for (std::size_t k = 0; k < row.log_p.size(); ++k) {
      losses.data[i] -= options.smoothing / static_cast<double>(row.log_p.size()) * row.weight[k] * row.log_p[k];
    }
    divisor += row.weight[own];
  }
  return reduced(losses, options.reduce, divisor);
}

Array cross_entropy_soft(const Array& logits, const Array& target, const LossOptions& options) {
  std::vector<std::int64_t> shape = logits.shape;
  shape.erase(shape.begin() + 1);
  Array losses(shape);
  for (std::size_t i = 0; i < losses.data.size(); ++i) {
    const Row row = row_of(logits, i, options);
    for (std::size_t k = 0; k < row.log_p.size(); ++k) {
      const double given = target.data[row.first + k * row.stride];
      const double smoothed =
          (1 - options.smoothing) * given + options.smoothing / static_cast<double>(row.log_p.size());
      losses.data[i] -= smoothed * row.weight[k] * row.log_p[k];
    }
  }
  return reduced(losses, options.reduce, static_cast<double>(losses.data.size()));
}

Array mse_loss(const Array& x, const Array& y, Reduce reduce) {
  Array losses(x.shape);
  for (std::size_t i = 0; i < x.data.size(); ++i) losses.data[i] = std::pow(x.data[i] - y.data[i], 2);
  return reduced(losses, reduce, static_cast<double>(losses.data.size()));
}

}  // namespace reference

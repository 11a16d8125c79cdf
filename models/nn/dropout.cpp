#include "models/nn/dropout.h"

#include "engine/error.h"
#include "engine/format.h"
#include "ops/dropout.h"

namespace polygrad {

namespace {

double checked_rate(const char* layer, double rate) {
  if (!(rate >= 0 && rate < 1)) {
    throw ValueError(format("[{}] rate is a probability below 1: expected 0 <= rate < 1, got {}", layer, rate));
  }
  return rate;
}

}  // namespace

Dropout::Dropout(double rate) : rate_(checked_rate("dropout", rate)) {}

Tensor Dropout::forward(const Tensor& x, const ForwardContext& context) const {
  if (!drops(context)) return x;
  const Scope scope(name());
  Generator stream = generator(context);
  return dropout(x, rate_, stream);
}

DropPath::DropPath(double rate) : rate_(checked_rate("drop_path", rate)) {}

Tensor DropPath::add(const Tensor& x, const Tensor& branch, const ForwardContext& context) const {
  const Scope scope(name());
  if (rate(context) == 0) return residual_add(x, branch);
  Generator stream = generator(context);
  return residual_add(x, branch, rate_, &stream);
}

double drop_path_rate(double rate, std::int64_t layer, std::int64_t layers) {
  return layers > 1 ? rate * static_cast<double>(layer) / static_cast<double>(layers - 1) : 0;
}

}  // namespace polygrad

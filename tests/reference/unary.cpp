#include "tests/reference/unary.h"

#include <cmath>
#include <stdexcept>

namespace reference {
namespace {

double value(const std::string& name, double x) {
  if (name == "neg") return -x;
  if (name == "abs") return std::fabs(x);
  if (name == "exp") return std::exp(x);
  if (name == "exp_neg") return std::exp(-x);
  if (name == "log") return std::log(x);
  if (name == "sqrt") return std::sqrt(x);
  if (name == "reciprocal") return 1 / x;
  if (name == "square") return x * x;
  if (name == "tanh") return std::tanh(x);
  if (name == "sigmoid") return 1 / (1 + std::exp(-x));
  if (name == "relu") return x > 0 ? x : 0;
  if (name == "elu") return x > 0 ? x : std::exp(x) - 1;
  if (name == "gelu") return x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
  if (name == "gelu_tanh") return x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
  if (name == "silu") return x / (1 + std::exp(-x));
  if (name == "softplus") return std::log(1 + std::exp(x));
  throw std::invalid_argument("no reference for " + name);
}

}  // namespace

Array unary(const std::string& name, const Array& x) {
  Array y = x;
  for (double& v : y.data) v = value(name, v);
  return y;
}

Array pow(const Array& x, int n) {
  Array y = x;
  for (double& v : y.data) v = std::pow(v, n);
  return y;
}

}  // namespace reference

#include "models/nn/linear.h"

#include "ops/matmul.h"

namespace polygrad {

Linear::Linear(std::int64_t in, std::int64_t out, const LinearInit& init, bool with_bias)
    : weight_(parameter("weight", {out, in}, init.weight)),
      bias_(with_bias ? parameter("bias", {out}, init.bias) : no_bias_) {}

Tensor Linear::forward(const Tensor& x, const ForwardContext&) const {
  const Scope scope(name());
  return linear(x, weight_, bias_);
}

Tensor Linear::forward_gelu(const Tensor& x, const ForwardContext&) const {
  const Scope scope(name());
  return linear_gelu(x, weight_, bias_);
}

}  // namespace polygrad

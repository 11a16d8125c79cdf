#include "models/nn/layer_norm.h"

#include "ops/norm.h"

namespace polygrad {

LayerNorm::LayerNorm(std::int64_t dim, double eps)
    : eps_(eps), weight_(parameter("weight", {dim}, Init::ones())), bias_(parameter("bias", {dim}, Init::zeros())) {}

Tensor LayerNorm::forward(const Tensor& x, const ForwardContext&) const {
  const Scope scope(name());
  return layer_norm(x, weight_, bias_, eps_);
}

}  // namespace polygrad

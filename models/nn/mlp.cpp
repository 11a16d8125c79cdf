#include "models/nn/mlp.h"

namespace polygrad {

Mlp::Mlp(std::int64_t dim, std::int64_t hidden, double dropout)
    : hidden_(hidden),
      fc1_(child<Linear>("fc1", dim, hidden, LinearInit::vision())),
      drop1_(child<Dropout>("drop1", dropout)),
      fc2_(child<Linear>("fc2", hidden, dim, LinearInit::vision())),
      drop2_(child<Dropout>("drop2", dropout)) {}

Tensor Mlp::forward(const Tensor& x, const ForwardContext& context) const {
  const Scope scope(name());
  const Tensor activated = drop1_.forward(fc1_.forward_gelu(x), context);  // (..., hidden)
  return drop2_.forward(fc2_.forward(activated), context);                 // (..., dim)
}

}  // namespace polygrad

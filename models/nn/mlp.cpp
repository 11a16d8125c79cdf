#include "models/nn/mlp.h"

#include "ops/pre_norm.h"

namespace polygrad {

namespace {

LinearInit init_of(const Mlp::Style& style, std::int64_t in) {
  return style.vision ? LinearInit::vision() : LinearInit::fan_in(in);
}

}  // namespace

Mlp::Mlp(std::int64_t dim, std::int64_t hidden, double dropout) : Mlp(dim, hidden, dropout, Style()) {}

Mlp::Mlp(std::int64_t dim, std::int64_t hidden, double dropout, const Style& style)
    : hidden_(hidden),
      fc1_(child<Linear>(style.first, dim, hidden, init_of(style, dim))),
      drop1_(child<Dropout>("drop1", dropout)),
      fc2_(child<Linear>(style.second, hidden, dim, init_of(style, hidden))),
      drop2_(child<Dropout>("drop2", dropout)) {}

Tensor Mlp::forward(const Tensor& x, const ForwardContext& context) const {
  const Scope scope(name());
  const Tensor activated = drop1_.forward(fc1_.forward_gelu(x), context);  // (..., hidden)
  return drop2_.forward(fc2_.forward(activated), context);                 // (..., dim)
}

Tensor Mlp::forward_residual(const Tensor& x, const LayerNorm& norm, const DropPath& drop_path,
                             const ForwardContext& context) const {
  if (drop1_.drops(context)) return drop_path.add(x, forward(norm.forward(x), context), context);
  const Scope scope(name());
  Generator stream = drop_path.generator(context);
  return pre_norm_mlp(x, norm.parameters(), fc1_.parameters(), fc2_.parameters(), {drop_path.rate(context), &stream});
}

}  // namespace polygrad

// Mlp: fc2(gelu(fc1(x))), the feed-forward part of a transformer block; GELU in its erf form.
#pragma once

#include "models/nn/dropout.h"
#include "models/nn/layer_norm.h"
#include "models/nn/linear.h"

namespace polygrad {

class Mlp : public Module {
 public:
  // `dropout` acts after the activation and after fc2.
  Mlp(std::int64_t dim, std::int64_t hidden, double dropout = 0);
  // (..., dim) -> (..., dim)
  Tensor forward(const Tensor& x, const ForwardContext& context = {}) const;
  // drop_path.add(x, forward(norm.forward(x))): the MLP half of a block, fused where no dropout acts inside.
  Tensor forward_residual(const Tensor& x, const LayerNorm& norm, const DropPath& drop_path,
                          const ForwardContext& context = {}) const;
  std::int64_t hidden() const { return hidden_; }

 private:
  std::int64_t hidden_;
  Linear& fc1_;
  Dropout& drop1_;
  Linear& fc2_;
  Dropout& drop2_;
};

}  // namespace polygrad

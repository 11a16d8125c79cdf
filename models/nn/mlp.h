// Mlp: fc2(gelu(fc1(x))), the feed-forward part of a transformer block; GELU in its erf form.
#pragma once

#include "models/nn/dropout.h"
#include "models/nn/layer_norm.h"
#include "models/nn/linear.h"

namespace polygrad {

class Mlp : public Module {
 public:
  // How the two linear layers are called and start.
  struct Style {
    const char *first = "fc1", *second = "fc2";
    bool vision = true;  // N(0, 0.02^2) and 0; false: torch's U(+-1/sqrt(in))
  };
  // `dropout` acts after the activation and after fc2.
  Mlp(std::int64_t dim, std::int64_t hidden, double dropout = 0);
  Mlp(std::int64_t dim, std::int64_t hidden, double dropout, const Style& style);
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

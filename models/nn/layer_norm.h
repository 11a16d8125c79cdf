// LayerNorm: normalises the last dimension, then scales and shifts it. eps is 1e-6 in ViT, DeiT and XCiT, 1e-5 in
// Swin and the Long Range Arena encoders.
#pragma once

#include "models/nn/module.h"

namespace polygrad {

class LayerNorm : public Module {
 public:
  LayerNorm(std::int64_t dim, double eps);
  // (..., dim) -> the same shape. Throws ShapeError.
  Tensor forward(const Tensor& x, const ForwardContext& context = {}) const;
  double eps() const { return eps_; }

 private:
  double eps_;
  const Tensor& weight_;
  const Tensor& bias_;
};

}  // namespace polygrad

// LayerNorm: normalises the last dimension, then scales and shifts it. eps is 1e-6 in ViT, DeiT and XCiT, 1e-5 in
// Swin and the Long Range Arena encoders.
#pragma once

#include "models/nn/module.h"
#include "ops/pre_norm.h"

namespace polygrad {

class LayerNorm : public Module {
 public:
  LayerNorm(std::int64_t dim, double eps);
  // (..., dim) -> the same shape. Throws ShapeError.
  Tensor forward(const Tensor& x, const ForwardContext& context = {}) const;
  // What the fused ops (ops/pre_norm.h) take in place of a forward.
  NormParameters parameters() const { return {weight_, bias_, eps_}; }
  double eps() const { return eps_; }

 private:
  double eps_;
  const Tensor& weight_;
  const Tensor& bias_;
};

}  // namespace polygrad

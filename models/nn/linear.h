// Linear: y = x W^T + b over the last dimension, torch's layout: weight (out, in), bias (out).
//
// Read next: mlp.h, attention.h.
#pragma once

#include "models/nn/module.h"
#include "ops/pre_norm.h"

namespace polygrad {

struct LinearInit {
  Init weight, bias;
  // U(+-1/sqrt(in)) for both: torch's default.
  static LinearInit fan_in(std::int64_t in) { return {Init::fan_in(in), Init::fan_in(in)}; }
  // N(0, 0.02^2) and 0: the vision transformers'.
  static LinearInit vision() { return {Init::normal(0.02), Init::zeros()}; }
};

class Linear : public Module {
 public:
  Linear(std::int64_t in, std::int64_t out, bool with_bias = true)
      : Linear(in, out, LinearInit::fan_in(in), with_bias) {}
  Linear(std::int64_t in, std::int64_t out, const LinearInit& init, bool with_bias = true);

  // (..., in) -> (..., out). Throws ShapeError.
  Tensor forward(const Tensor& x, const ForwardContext& context = {}) const;
  // gelu(x W^T + b), erf form: the product's epilogue while a block is in cache.
  Tensor forward_gelu(const Tensor& x, const ForwardContext& context = {}) const;

  // What the fused ops (ops/pre_norm.h) take in place of a forward.
  LinearParameters parameters() const { return {weight_, bias_}; }

  const Tensor& weight() const { return weight_; }
  const Tensor& bias() const { return bias_; }  // undefined where there is none

 private:
  const Tensor no_bias_;
  const Tensor& weight_;
  const Tensor& bias_;
};

}  // namespace polygrad

// Dropout and DropPath: the layers that draw random numbers. In evaluation, and at rate 0, both are the identity and
// draw nothing.
//
// Where this stands: above ops/dropout.h, which has the masks. They hold no parameters; as modules they have a place in
// the tree and so a stream of their own (module.h).
#pragma once

#include "models/nn/module.h"

namespace polygrad {

// y = x * mask / (1 - rate), an independent mask for each element; dimension 0 is the batch.
class Dropout : public StochasticLayer {
 public:
  // Throws ValueError unless 0 <= rate < 1.
  explicit Dropout(double rate);
  Tensor forward(const Tensor& x, const ForwardContext& context = {}) const;
  bool draws() const override { return rate_ > 0; }
  bool drops(const ForwardContext& context) const { return context.training && rate_ > 0; }
  double rate() const { return rate_; }

 private:
  double rate_;
};

// The residual connection with stochastic depth: x + branch * keep / (1 - rate), one keep per sample. The rate grows
// linearly over the depth of a model, 0 at the first block: drop_path_rate().
class DropPath : public StochasticLayer {
 public:
  explicit DropPath(double rate);
  Tensor add(const Tensor& x, const Tensor& branch, const ForwardContext& context = {}) const;
  bool draws() const override { return rate_ > 0; }
  // The probability of dropping in this forward: for the fused ops (ops/pre_norm.h), which add the branch themselves.
  double rate(const ForwardContext& context) const { return context.training ? rate_ : 0; }
  double rate() const { return rate_; }

 private:
  double rate_;
};

// rate * layer / (layers - 1): 0 for the first of `layers`, the whole rate for the last (0 where there is only one).
double drop_path_rate(double rate, std::int64_t layer, std::int64_t layers);

}  // namespace polygrad

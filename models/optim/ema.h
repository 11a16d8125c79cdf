// Ema: an exponential moving average of a model's weights, kept in a second model of the same shape.
//
//   average <- decay average + (1 - decay) model        after each optimizer step, for parameters and buffers
//
// The average is a model by itself: evaluating it touches nothing of the one that is trained, so there is nothing to
// swap and nothing to restore. Integer buffers are copied.
#pragma once

#include <cstdint>

#include "models/nn/module.h"

namespace polygrad {

class Ema {
 public:
  // `average` (which must outlive this) starts as a copy of `model`. Throws ValueError where the two are not alike, or
  // unless 0 <= decay < 1.
  Ema(Module& average, const Module& model, double decay);
  void update(const Module& model);

  std::int64_t updates() const { return updates_; }
  double decay() const { return decay_; }
  const Module& average() const { return average_; }

  // For checkpoints: the averaged weights under the model's names, and the counter.
  NamedTensors export_state() const { return average_.state(); }
  // Throws IoError, as load_state of weights.h; nothing has changed then.
  void import_state(const NamedTensors& state, std::int64_t updates);

 private:
  Module& average_;
  double decay_;
  std::int64_t updates_ = 0;
};

}  // namespace polygrad

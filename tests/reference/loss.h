// Naive twins of the loss family.
#pragma once

#include <cstdint>

#include "tests/reference/array.h"

namespace reference {

enum class Reduce { none, mean, sum };

struct LossOptions {
  double smoothing = 0;
  std::int64_t ignored = -100;
  Reduce reduce = Reduce::mean;
  Array class_weight;  // empty: all 1
};

// Logits (N, K, places...), class ids (N, places...).
Array cross_entropy(const Array& logits, const Array& target, const LossOptions& options);
// Targets of the logits' shape.
Array cross_entropy_soft(const Array& logits, const Array& target, const LossOptions& options);
Array mse_loss(const Array& x, const Array& y, Reduce reduce);

}  // namespace reference

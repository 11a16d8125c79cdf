// LossScale: what the loss is multiplied by before a backward in f16, so that small gradients are not lost.
//
// Where this stands: below train_step.h, beside skipped_steps.h; checkpoints keep it. f16 has nothing below 6e-8, and
// nothing above 65504: a scale that is too large shows as an infinite gradient, and then the step is skipped and the
// scale halved; after many steps without that it is doubled. It is a power of two, so scaling rounds nothing.
#pragma once

#include <cstdint>

namespace polygrad {

struct LossScale {
  static constexpr double kFirst = 65536;
  static constexpr std::int64_t kStepsToDouble = 2000;

  double scale = kFirst;
  std::int64_t good_steps = 0;  // since the scale last changed

  void step_done() {
    if (++good_steps < kStepsToDouble) return;
    scale *= 2;
    good_steps = 0;
  }
  void step_skipped() {
    scale /= 2;
    good_steps = 0;
  }
  // Below 1 it would make gradients smaller than they are: what overflows then is not the scale's doing.
  bool exhausted() const { return scale < 1; }
  bool operator==(const LossScale&) const = default;
};

}  // namespace polygrad

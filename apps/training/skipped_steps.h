// SkippedSteps: how many steps of a run were left out, since their loss or their gradients were not finite.
//
// Where this stands: beside loss_scale.h, below train_step.h, which counts; checkpoints keep it. A skipped step leaves
// weights, optimizer and average as they were; its batch and its place in the schedule are used up.
#pragma once

#include <cstdint>

namespace polygrad {

struct SkippedSteps {
  std::int64_t total = 0;     // of the run
  std::int64_t in_a_row = 0;  // since the last step that was not
  bool operator==(const SkippedSteps&) const = default;
};

}  // namespace polygrad

#include "models/optim/adamw.h"

#include "engine/error.h"
#include "engine/format.h"
#include "ops/optim_step.h"

namespace polygrad {

AdamW::AdamW(std::vector<ParamGroup> groups, const AdamWOptions& options)
    : Optimizer(std::move(groups), {"exp_avg", "exp_avg_sq"}), options_(options) {
  if (!(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1 && options.eps >= 0)) {
    throw ValueError(format("[adamw] expected 0 <= beta < 1 and eps >= 0, got betas {} and {}, eps {}", options.beta1,
                            options.beta2, options.eps));
  }
}

void AdamW::update(const std::vector<Update>& updates, const ScheduleValue& value, double grad_scale) {
  for_equal(updates, [&](std::size_t first, std::size_t last) {
    std::vector<AdamWTensors> tensors;
    for (std::size_t i = first; i < last; ++i) {
      const Slot& slot = *updates[i].slot;
      tensors.push_back({slot.parameter, updates[i].gradient, slot.parts[0], slot.parts[1]});
    }
    adamw_step(tensors, {.lr = updates[first].lr,
                         .beta1 = value.beta1.value_or(options_.beta1),
                         .beta2 = options_.beta2,
                         .eps = options_.eps,
                         .weight_decay = updates[first].weight_decay,
                         .step = updates[first].slot->updates,
                         .grad_scale = grad_scale});
  });
}

}  // namespace polygrad

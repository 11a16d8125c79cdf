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

void AdamW::update(Slot& slot, const Tensor& gradient, double lr, const ScheduleValue& value, double weight_decay) {
  AdamWStep step;
  step.lr = lr;
  step.beta1 = value.beta1.value_or(options_.beta1);
  step.beta2 = options_.beta2;
  step.eps = options_.eps;
  step.weight_decay = weight_decay;
  step.step = slot.updates;
  adamw_step(slot.parameter, gradient, slot.parts[0], slot.parts[1], step);
}

}  // namespace polygrad

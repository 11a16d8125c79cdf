#include "models/optim/sgd.h"

#include "engine/error.h"
#include "engine/format.h"
#include "ops/optim_step.h"

namespace polygrad {

namespace {

std::vector<std::string> state_parts(const SgdOptions& options) {
  if (options.momentum == 0) return {};
  return {"momentum_buffer"};
}

}  // namespace

Sgd::Sgd(std::vector<ParamGroup> groups, const SgdOptions& options)
    : Optimizer(std::move(groups), state_parts(options)), options_(options) {
  if (!(options.momentum >= 0 && options.momentum < 1)) {
    throw ValueError(format("[sgd] expected 0 <= momentum < 1, got {}", options.momentum));
  }
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0)) {
    throw ValueError(format("[sgd] nesterov needs a momentum and no dampening; got momentum {}, dampening {}",
                            options.momentum, options.dampening));
  }
}

void Sgd::update(Slot& slot, const Tensor& gradient, double lr, const ScheduleValue& value, double weight_decay) {
  SgdStep step;
  step.lr = lr;
  step.momentum = options_.momentum == 0 ? 0 : value.beta1.value_or(options_.momentum);
  step.dampening = options_.dampening;
  step.weight_decay = weight_decay;
  step.nesterov = options_.nesterov;
  step.first = slot.updates == 1;
  sgd_step(slot.parameter, gradient, slot.parts.empty() ? Tensor() : slot.parts[0], step);
}

}  // namespace polygrad

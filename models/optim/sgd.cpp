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

void Sgd::update(const std::vector<Update>& updates, const ScheduleValue& value, double grad_scale) {
  for_equal(updates, [&](std::size_t first, std::size_t last) {
    std::vector<SgdTensors> tensors;
    for (std::size_t i = first; i < last; ++i) {
      const Slot& slot = *updates[i].slot;
      tensors.push_back({slot.parameter, updates[i].gradient, slot.parts.empty() ? Tensor() : slot.parts[0]});
    }
    sgd_step(tensors, {.lr = updates[first].lr,
                       .momentum = options_.momentum == 0 ? 0 : value.beta1.value_or(options_.momentum),
                       .dampening = options_.dampening,
                       .weight_decay = updates[first].weight_decay,
                       .nesterov = options_.nesterov,
                       .first = updates[first].slot->updates == 1,
                       .grad_scale = grad_scale});
  });
}

}  // namespace polygrad

#include "models/optim/optimizer.h"

#include <map>
#include <set>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/format.h"

namespace polygrad {

Optimizer::Optimizer(std::vector<ParamGroup> groups, std::vector<std::string> parts)
    : groups_(std::move(groups)), part_names_(std::move(parts)) {
  std::set<std::string> seen;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (const auto& [path, tensor] : groups_[g].parameters) {
      if (!seen.insert(path).second) throw ValueError(format("[optimizer] parameter {} is given twice", path));
      if (!tensor.is_leaf() || !tensor.requires_grad()) {
        throw ValueError(format("[optimizer] parameter {} is no leaf that requires a gradient", path));
      }
      slots_.push_back({tensor, path, g, 0, {}});
    }
  }
}

void Optimizer::step(const ScheduleValue& value, double grad_scale) {
  const NoGradGuard no_grad;
  std::vector<Update> updates;
  for (Slot& slot : slots_) {
    const Tensor gradient = slot.parameter.grad();
    if (!gradient.defined()) continue;
    if (slot.parts.empty()) {
      for (std::size_t i = 0; i < part_names_.size(); ++i) slot.parts.push_back(zeros_like(slot.parameter));
    }
    ++slot.updates;
    const ParamGroup& group = groups_[slot.group];
    updates.push_back({&slot, gradient, value.lr * group.lr_scale, group.weight_decay});
  }
  update(updates, value, grad_scale);
}

void Optimizer::for_equal(const std::vector<Update>& updates,
                          const std::function<void(std::size_t first, std::size_t last)>& apply) {
  for (std::size_t first = 0, last = 0; first < updates.size(); first = last) {
    const Update& a = updates[first];
    while (last < updates.size() && updates[last].lr == a.lr && updates[last].weight_decay == a.weight_decay &&
           updates[last].slot->updates == a.slot->updates) {
      ++last;
    }
    apply(first, last);
  }
}

void Optimizer::zero_grad() {
  for (Slot& slot : slots_) slot.parameter.zero_grad();
}

std::vector<Tensor> Optimizer::gradients() const {
  std::vector<Tensor> result;
  for (const Slot& slot : slots_) {
    if (const Tensor gradient = slot.parameter.grad(); gradient.defined()) result.push_back(gradient);
  }
  return result;
}

NamedTensors Optimizer::export_state() const {
  NamedTensors state;
  for (const Slot& slot : slots_) {
    if (slot.updates == 0) continue;
    state.emplace_back("step." + slot.path, Tensor::from_vector<std::int64_t>({slot.updates}));
    for (std::size_t i = 0; i < slot.parts.size(); ++i) {
      state.emplace_back(part_names_[i] + "." + slot.path, slot.parts[i]);
    }
  }
  return state;
}

void Optimizer::import_state(const NamedTensors& state) {
  std::map<std::string, Tensor> given(state.begin(), state.end());
  std::string problems;
  std::vector<Slot> next = slots_;
  for (Slot& slot : next) {
    slot.updates = 0;
    slot.parts.clear();
    const auto steps = given.find("step." + slot.path);
    if (steps == given.end()) continue;  // never updated; a part of it that is there all the same is reported below
    if (steps->second.dtype() == DType::i64 && steps->second.numel() == 1) {
      slot.updates = steps->second.item<std::int64_t>();
    } else {
      problems += format("\n  wrong: {} is {}; expected one i64", steps->first, describe(steps->second));
    }
    given.erase(steps);
    for (const std::string& part : part_names_) {
      const auto found = given.find(part + "." + slot.path);
      if (found == given.end()) {
        problems += format("\n  missing: {}.{}", part, slot.path);
        continue;
      }
      if (found->second.shape() != slot.parameter.shape() || found->second.dtype() != slot.parameter.dtype()) {
        problems += format("\n  wrong: {} is {}; expected {} {}", found->first, describe(found->second),
                           to_string(slot.parameter.dtype()), to_string(slot.parameter.shape()));
      } else {
        slot.parts.push_back(found->second.to(slot.parameter.device()).clone());
      }
      given.erase(found);
    }
  }
  for (const auto& [name, tensor] : given) problems += format("\n  unexpected: {}", name);
  if (!problems.empty()) throw IoError("[optimizer] the saved state does not fit the parameters:" + problems);
  slots_ = std::move(next);
}

}  // namespace polygrad

// CustomFunction: what the builder collects becomes one call of record(); see custom_function.h.
#include "engine/custom_function.h"

#include <string>

#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

Tensor SavedTensors::operator[](std::string_view name) const {
  for (const auto& [saved_name, tensor] : entries_) {
    if (name == saved_name) return tensor.get();
  }
  std::string names;
  for (const auto& [saved_name, tensor] : entries_) {
    if (!names.empty()) names += ", ";
    names += saved_name;
  }
  throw InternalError(format("[CustomFunction] no tensor was saved as '{}'; expected one of: {}",
                             fmt::string_view(name.data(), name.size()),
                             names.empty() ? "(nothing was saved)" : names));
}

CustomFunction& CustomFunction::save(const char* name, const Tensor& tensor) {
  saved_.entries_.emplace_back(name, SavedTensor(tensor, name));
  return *this;
}

CustomFunction& CustomFunction::backward(Backward rule) {
  rule_ = std::move(rule);
  return *this;
}

Tensor CustomFunction::output(const Forward& compute, const char* save_output_as) {
  if (!rule_ && needs_grad(std::span<const Tensor>(inputs_))) {
    throw GradError(
        format("[{}] no backward rule, but an input requires a gradient: it would be cut silently; give "
               "one with backward(), or compute under a NoGradGuard",
               op_));
  }
  Tensor result;
  {
    const NoGradGuard no_grad;
    result = compute();
  }
  if (!result.defined()) {
    throw ValueError(format("[{}] the forward returned an undefined tensor; expected a result", op_));
  }
  if (!rule_) return result;

  SavedTensors saved = saved_;
  if (save_output_as != nullptr) saved.entries_.emplace_back(save_output_as, SavedTensor(result, save_output_as));
  return record(op_, std::move(result), inputs_,
                [saved = std::move(saved), rule = rule_](const Tensor& grad_output, NeededMask needed) {
                  return rule(saved, grad_output, needed);
                });
}

}  // namespace polygrad

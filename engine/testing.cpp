#include "engine/testing.h"

#include "engine/testing_access.h"

namespace polygrad::testing {

namespace {

thread_local MutationGuard* current_mutation = nullptr;

}  // namespace

MutationGuard::MutationGuard(std::string op, MutationTarget target, double factor)
    : op_(std::move(op)), target_(target), factor_(factor), previous_(current_mutation) {
  current_mutation = this;
}

MutationGuard::~MutationGuard() { current_mutation = previous_; }

std::optional<double> MutationGuard::Access::factor(std::string_view op, MutationTarget target) {
  MutationGuard* guard = current_mutation;
  if (!guard || guard->target_ != target || guard->op_ != op) return std::nullopt;
  ++guard->applied_;
  return guard->factor_;
}

}  // namespace polygrad::testing

// How record() and the walk ask for deliberate faults. Internal: not installed.
#pragma once

#include <optional>
#include <string_view>

#include "engine/testing.h"

namespace polygrad::testing {

struct MutationGuard::Access {
  // The factor for this op and target, where a guard of this thread asks for one; counts the use.
  static std::optional<double> factor(std::string_view op, MutationTarget target);
};

}  // namespace polygrad::testing

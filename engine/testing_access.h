// How the engine asks for what testing.h switches on. Internal: not installed.
#pragma once

#include <optional>
#include <string_view>

#include "engine/testing.h"

namespace polygrad::testing {

struct MutationGuard::Access {
  // The factor for this op and target, where a guard of this thread asks for one; counts the use.
  static std::optional<double> factor(std::string_view op, MutationTarget target);
};

// Whether a PoisonGuard, or an UncachedGuard, is alive.
bool poisons();
bool uncached();

}  // namespace polygrad::testing

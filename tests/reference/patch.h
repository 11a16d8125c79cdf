// Naive twin of the patch family.
#pragma once

#include <cstdint>

#include "tests/reference/array.h"

namespace reference {

Array patch_unfold(const Array& images, std::int64_t patch_h, std::int64_t patch_w);

}  // namespace reference

#include "tests/reference/patch.h"

#include "tests/reference/view.h"

namespace reference {

Array patch_unfold(const Array& images, std::int64_t patch_h, std::int64_t patch_w) {
  const std::int64_t batch = images.shape[0], channels = images.shape[1];
  const std::int64_t down = images.shape[2] / patch_h, across = images.shape[3] / patch_w;
  Array y({batch, down * across, channels * patch_h * patch_w});
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t c = 0; c < channels; ++c) {
      for (std::int64_t row = 0; row < images.shape[2]; ++row) {
        for (std::int64_t column = 0; column < images.shape[3]; ++column) {
          const std::int64_t patch = row / patch_h * across + column / patch_w;
          const std::int64_t inside = (c * patch_h + row % patch_h) * patch_w + column % patch_w;
          at(y, {b, patch, inside}) = at(images, {b, c, row, column});
        }
      }
    }
  }
  return y;
}

}  // namespace reference

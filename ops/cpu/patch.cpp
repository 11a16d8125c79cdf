// The patch family on the CPU: runs of patch_w elements are copied between an image's row and a patch.
#include "ops/kernels/patch.h"

#include <algorithm>
#include <cstring>

#include "engine/parallel.h"

namespace polygrad {
namespace {

// Calls copy(pixels, patch elements, bytes) for every run of both tensors, one image row after another.
template <class Copy>
void for_runs(const TensorRef& images, std::int64_t patch_h, std::int64_t patch_w, const TensorRef& patches,
              const Copy& copy) {
  const std::int64_t batch = images.sizes[0], channels = images.sizes[1], height = images.sizes[2];
  const std::int64_t width = images.sizes[3];
  const std::int64_t size = static_cast<std::int64_t>(dtype_size(images.dtype)), run = patch_w * size;
  const std::int64_t across = width / patch_w, patch_size = channels * patch_h * patch_w;
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / (width + 1));
  parallel_for(0, batch * channels * height, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t y = row % height, c = row / height % channels, b = row / height / channels;
      const std::int64_t first_patch = (b * (height / patch_h) + y / patch_h) * across;
      const std::int64_t inside = (c * patch_h + y % patch_h) * patch_w;
      char* pixels = images.as<char>() + row * width * size;
      char* elements = patches.as<char>() + (first_patch * patch_size + inside) * size;
      for (std::int64_t i = 0; i < across; ++i) copy(pixels + i * run, elements + i * patch_size * size, run);
    }
  });
}

void unfold(Workspace&, const TensorRef& images, std::int64_t patch_h, std::int64_t patch_w, const TensorRef& patches) {
  for_runs(images, patch_h, patch_w, patches, [](const char* pixels, char* elements, std::int64_t bytes) {
    std::memcpy(elements, pixels, static_cast<std::size_t>(bytes));
  });
}

void fold(Workspace&, const TensorRef& patches, std::int64_t patch_h, std::int64_t patch_w, const TensorRef& images) {
  for_runs(images, patch_h, patch_w, patches, [](char* pixels, const char* elements, std::int64_t bytes) {
    std::memcpy(pixels, elements, static_cast<std::size_t>(bytes));
  });
}

}  // namespace

constinit const PatchKernels cpu_patch_kernels = {
    .unfold = unfold,
    .fold = fold,
};

}  // namespace polygrad

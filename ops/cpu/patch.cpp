// The patch family on the CPU: runs of patch_w elements are copied between an image's row and a patch.
#include "ops/kernels/patch.h"

#include <algorithm>
#include <cstring>

#include "engine/parallel.h"

namespace polygrad {
namespace {

// `count` runs of `bytes` each, that many steps apart on either side.
struct Runs {
  std::int64_t bytes, count;
  std::int64_t from_step, to_step;
};

template <std::int64_t kBytes>
void copy_known(const char* from, char* to, const Runs& runs) {
  for (std::int64_t i = 0; i < runs.count; ++i) {
    std::memcpy(to + i * runs.to_step, from + i * runs.from_step, kBytes);
  }
}

// The sizes of usual patches become one or two moves, not a call each.
void copy_runs(const char* from, char* to, const Runs& runs) {
  switch (runs.bytes) {
    case 16:
      return copy_known<16>(from, to, runs);
    case 28:
      return copy_known<28>(from, to, runs);
    case 32:
      return copy_known<32>(from, to, runs);
    case 64:
      return copy_known<64>(from, to, runs);
    default:
      for (std::int64_t i = 0; i < runs.count; ++i) {
        std::memcpy(to + i * runs.to_step, from + i * runs.from_step, static_cast<std::size_t>(runs.bytes));
      }
  }
}

// For each row of an image calls row(pixels, where its first run lies in the patches, number of runs, bytes of one,
// distance of two in the patches).
template <class Row>
void for_rows(const TensorRef& images, std::int64_t patch_h, std::int64_t patch_w, const TensorRef& patches,
              const Row& do_row) {
  const std::int64_t batch = images.sizes[0], channels = images.sizes[1], height = images.sizes[2];
  const std::int64_t width = images.sizes[3];
  const std::int64_t size = static_cast<std::int64_t>(dtype_size(images.dtype));
  const std::int64_t across = width / patch_w, patch_size = channels * patch_h * patch_w;
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / (width + 1));
  parallel_for(0, batch * channels * height, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t y = row % height, c = row / height % channels, b = row / height / channels;
      const std::int64_t first_patch = (b * (height / patch_h) + y / patch_h) * across;
      const std::int64_t inside = (c * patch_h + y % patch_h) * patch_w;
      do_row(images.as<char>() + row * width * size, patches.as<char>() + (first_patch * patch_size + inside) * size,
             across, patch_w * size, patch_size * size);
    }
  });
}

void unfold(Workspace&, const TensorRef& images, std::int64_t patch_h, std::int64_t patch_w, const TensorRef& patches) {
  for_rows(images, patch_h, patch_w, patches,
           [](const char* pixels, char* elements, std::int64_t runs, std::int64_t bytes, std::int64_t step) {
             copy_runs(pixels, elements, {.bytes = bytes, .count = runs, .from_step = bytes, .to_step = step});
           });
}

void fold(Workspace&, const TensorRef& patches, std::int64_t patch_h, std::int64_t patch_w, const TensorRef& images) {
  for_rows(images, patch_h, patch_w, patches,
           [](char* pixels, const char* elements, std::int64_t runs, std::int64_t bytes, std::int64_t step) {
             copy_runs(elements, pixels, {.bytes = bytes, .count = runs, .from_step = step, .to_step = bytes});
           });
}

}  // namespace

constinit const PatchKernels cpu_patch_kernels = {
    .unfold = unfold,
    .fold = fold,
};

}  // namespace polygrad

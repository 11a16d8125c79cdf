// The patch family on a GPU: pure copies, a thread an element, in the order in which they are written.
#include "ops/kernels/patch.h"

#include "engine/backend/cuda/element.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/walk.h"

namespace polygrad::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void copy_kernel(const T* from, T* to, Walk<2> walk) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= walk.count) return;
  std::int64_t place[2];
  walk.offsets(i, place);
  to[place[1]] = from[place[0]];
}

// Both tensors seen as (B, H / h, W / w, C, h, w), which is how patches lie in memory.
void copy(const char* name, const TensorRef& images, std::int64_t patch_h, std::int64_t patch_w,
          const TensorRef& patches, bool from_images) {
  const std::int64_t batch = images.sizes[0], channels = images.sizes[1], height = images.sizes[2],
                     width = images.sizes[3], down = height / patch_h, across = width / patch_w;
  const std::int64_t sizes[6] = {batch, down, across, channels, patch_h, patch_w};
  const std::int64_t of_images[6] = {channels * height * width, patch_h * width, patch_w, height * width, width, 1};
  TensorRef both[2] = {images, patches};
  for (TensorRef& ref : both) ref.dim = 6;
  for (std::int64_t i = 5, step = 1; i >= 0; step *= sizes[i], --i) {
    both[0].sizes[i] = both[1].sizes[i] = sizes[i];
    both[0].strides[i] = of_images[i];
    both[1].strides[i] = step;
  }
  const TensorRef &from = both[from_images ? 0 : 1], &to = both[from_images ? 1 : 0];
  const Walk<2> walk = make_walk<2>({&from, &to});
  dispatch_size(images.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch(name, {.x = ceil_div(walk.count, kThreads)}, kThreads, 0, copy_kernel<T>, from.as<const T>(), to.as<T>(),
           walk);
  });
}

void unfold(Workspace&, const TensorRef& images, std::int64_t patch_h, std::int64_t patch_w, const TensorRef& patches) {
  if (images.numel() > 0) copy("patch_unfold", images, patch_h, patch_w, patches, true);
}

void fold(Workspace&, const TensorRef& patches, std::int64_t patch_h, std::int64_t patch_w, const TensorRef& images) {
  if (images.numel() > 0) copy("patch_fold", images, patch_h, patch_w, patches, false);
}

constexpr PatchKernels kKernels = {.unfold = unfold, .fold = fold};

}  // namespace
}  // namespace polygrad::cuda

namespace polygrad {

const PatchKernels& cuda_patch_kernels() { return cuda::kKernels; }

}  // namespace polygrad

#include "ops/patch.h"

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/workspace.h"
#include "ops/kernels/patch.h"

namespace polygrad {

Tensor patch_unfold(const Tensor& images, std::int64_t patch_h, std::int64_t patch_w) {
  if (patch_h < 1 || patch_w < 1) {
    throw ValueError(format("[patch_unfold] patch {} x {}; expected at least 1 x 1", patch_h, patch_w));
  }
  if (images.dim() != 4) {
    throw ShapeError(
        format("[patch_unfold] images {}; expected (batch, channels, height, width)", to_string(images.shape())));
  }
  const Shape& shape = images.shape();
  if (shape[2] % patch_h != 0 || shape[3] % patch_w != 0) {
    throw ShapeError(format("[patch_unfold] a patch of {} x {} does not divide images {}; resize or pad them", patch_h,
                            patch_w, to_string(shape)));
  }
  const Tensor input = images.detach().contiguous();
  Tensor patches = Tensor::empty({shape[0], shape[2] / patch_h * (shape[3] / patch_w), shape[1] * patch_h * patch_w},
                                 images.options());
  {
    Workspace workspace(images.device());
    patch_kernels(images.device().type).unfold(workspace, input.ref(), patch_h, patch_w, patches.ref());
  }
  return record("patch_unfold", patches, {images}, [=, from = shape](const Tensor& g, NeededMask) -> Gradients {
    const Tensor gy = g.contiguous();
    Tensor gx = Tensor::empty(from, g.options());
    Workspace workspace(g.device());
    patch_kernels(g.device().type).fold(workspace, gy.ref(), patch_h, patch_w, gx.ref());
    return {gx};
  });
}

}  // namespace polygrad

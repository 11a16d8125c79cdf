#include "ops/patch.h"

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/workspace.h"
#include "ops/check.h"
#include "ops/kernels/patch.h"

namespace polygrad {
namespace {

// The entry of the table of x's device; throws where that has none.
template <class Kernel>
Kernel kernel_of(const char* op, const Tensor& x, Kernel PatchKernels::*entry) {
  const DeviceType device = x.device().type;
  const Kernel kernel = patch_kernels(device).*entry;
  require_kernel(op, kernel != nullptr, device);
  return kernel;
}

}  // namespace

Tensor patch_unfold(const Tensor& images, std::int64_t patch_h, std::int64_t patch_w) {
  check_defined("patch_unfold", images, "images");
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
  const Tensor input = kernel_input(images);
  Tensor patches = Tensor::empty({shape[0], shape[2] / patch_h * (shape[3] / patch_w), shape[1] * patch_h * patch_w},
                                 images.options());
  {
    Workspace workspace(images.device());
    kernel_of("patch_unfold", images, &PatchKernels::unfold)(workspace, input.ref(), patch_h, patch_w, patches.ref());
  }
  return record("patch_unfold", patches, {images}, [=, from = shape](const Tensor& g, NeededMask) -> Gradients {
    const Tensor gy = kernel_input(g);
    Tensor gx = Tensor::empty(from, g.options());
    Workspace workspace(g.device());
    kernel_of("patch_unfold", g, &PatchKernels::fold)(workspace, gy.ref(), patch_h, patch_w, gx.ref());
    return {gx};
  });
}

}  // namespace polygrad

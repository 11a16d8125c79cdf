// Kernels of the patch family: pure copies of contiguous tensors of any dtype.
//
// images (B, C, H, W), patches (B, (H/patch_h)·(W/patch_w), C·patch_h·patch_w).
#pragma once

#include <cstdint>

#include "engine/tensor_ref.h"
#include "engine/workspace.h"
#include "ops/kernels/dispatch.h"

namespace polygrad {

struct PatchKernels {
  void (*unfold)(Workspace&, const TensorRef& images, std::int64_t patch_h, std::int64_t patch_w,
                 const TensorRef& patches);
  // The inverse.
  void (*fold)(Workspace&, const TensorRef& patches, std::int64_t patch_h, std::int64_t patch_w,
               const TensorRef& images);
};

extern const PatchKernels cpu_patch_kernels;
const PatchKernels& cuda_patch_kernels();
inline const PatchKernels& patch_kernels(DeviceType device) {
  return select_kernels(device, cpu_patch_kernels, cuda_patch_kernels);
}

}  // namespace polygrad

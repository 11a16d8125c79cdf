// Cutting images into patches.
//
// Where this stands: front of ops/kernels/patch.h. With the linear layer behind it, this is the patch embedding of a
// vision transformer (Dosovitskiy et al., 2021), equal to a convolution whose stride is its kernel size.
// Read next: models/nn/patch_embed.h.
#pragma once

#include <cstdint>

#include "engine/tensor.h"

namespace polygrad {

// images (B, C, H, W) -> (B, N, C·patch_h·patch_w) with N = (H/patch_h)·(W/patch_w): patches row by row, inside a patch
// channel by channel and then row by row. So linear(patches, w) with w (D, C, patch_h, patch_w) flattened to two
// dimensions is conv2d(images, w, stride = patch). Any dtype.
// Throws ShapeError unless the patch divides the image, ValueError for a patch size below 1.
// Gradient: each element of g back at its pixel.
Tensor patch_unfold(const Tensor& images, std::int64_t patch_h, std::int64_t patch_w);

}  // namespace polygrad

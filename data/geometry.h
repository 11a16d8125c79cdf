// Affine maps of an image with Pillow's arithmetic: the same bytes as Image.transform and Image.rotate of Pillow 9.
//
// Where this stands: beside resize.h and color.h; randaugment.h draws from all three. Images are u8 (1 or 3, H, W),
// else ShapeError, DTypeError. The size stays; what comes from outside the image has the fill's colour (one number per
// channel, or one for all; else ValueError). Source of the arithmetic: Pillow's Geometry.c and Image.py.
//
// Unlike resize, bicubic has a = -1, and bilinear and bicubic results are cut off, not rounded.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "data/resize.h"
#include "engine/tensor.h"

namespace polygrad {

using Fill = std::vector<int>;

// Output pixel (x, y) is taken at (m[0] x' + m[1] y' + m[2], m[3] x' + m[4] y' + m[5]) of the input, x' = x + 0.5.
Tensor affine(const Tensor& image, const std::array<double, 6>& m, Filter filter, const Fill& fill);
// Counter-clockwise round the middle.
Tensor rotate(const Tensor& image, double degrees, Filter filter, const Fill& fill);
Tensor shear_x(const Tensor& image, double factor, Filter filter, const Fill& fill);
Tensor shear_y(const Tensor& image, double factor, Filter filter, const Fill& fill);
// By a share of the width, or height; positive moves the image left, or up.
Tensor translate_x(const Tensor& image, double share, Filter filter, const Fill& fill);
Tensor translate_y(const Tensor& image, double share, Filter filter, const Fill& fill);

}  // namespace polygrad

// Changes of colour and tone with Pillow's arithmetic: the same bytes as ImageOps and ImageEnhance of Pillow 9.
//
// Where this stands: beside resize.h and geometry.h; randaugment.h draws from all three. Images are u8 (1 or 3, H, W),
// else ShapeError, DTypeError; each function returns a new tensor. Source of the arithmetic: Pillow's ImageOps.py,
// ImageEnhance.py, Blend.c, Convert.c.
#pragma once

#include "engine/tensor.h"

namespace polygrad {

// (1, H, W): (19595 R + 38470 G + 7471 B + 32768) / 65536. A grey image is returned as it is.
Tensor to_grey(const Tensor& image);
// (3, H, W): three equal planes.
Tensor grey_to_rgb(const Tensor& image);

// Each channel's darkest value becomes 0, its brightest 255.
Tensor auto_contrast(const Tensor& image);
// Each channel's histogram is made flat.
Tensor equalize(const Tensor& image);
Tensor invert(const Tensor& image);
// Keeps the `bits` highest bits of each value, 0 to 8 (ValueError).
Tensor posterize(const Tensor& image, int bits);
// Values from `threshold` on are inverted.
Tensor solarize(const Tensor& image, int threshold);
// `add` is added to values below `threshold`, up to 255.
Tensor solarize_add(const Tensor& image, int add, int threshold = 128);

// out = other + factor * (image - other), cut to 0 ... 255 and to an integer. The other image is: grey (colour), one
// grey of the mean's value (contrast), black (brightness), smoothed by 3 x 3 with weight 5 in the middle (sharpness).
Tensor adjust_color(const Tensor& image, double factor);
Tensor adjust_contrast(const Tensor& image, double factor);
Tensor adjust_brightness(const Tensor& image, double factor);
Tensor adjust_sharpness(const Tensor& image, double factor);

}  // namespace polygrad

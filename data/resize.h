// Resizing with Pillow's arithmetic: antialiased, the same bytes as Image.resize of Pillow 9.
//
// Where this stands: training, evaluation and prediction all resize with this, so that they agree. Images are u8 (1 or
// 3, H, W), else ShapeError, DTypeError. Source of the arithmetic: Pillow's Resample.c, torchvision's Resize and
// CenterCrop.
#pragma once

#include <cstdint>
#include <string>

#include "engine/tensor.h"

namespace polygrad {

enum class Filter : std::uint8_t { nearest, bilinear, bicubic, lanczos };  // nearest: for geometry.h only
Filter parse_filter(const std::string& name);                              // ValueError for another name

struct Box {
  std::int64_t top = 0, left = 0, height = 0, width = 0;
};

// The part of the image inside the box. Throws ValueError where the box is empty or leaves the image.
Tensor crop(const Tensor& image, const Box& box);
// The whole image at another size. A smaller one averages over what falls together: the filter widens by the factor.
// bicubic has a = -0.5. Weights are rounded to 22 bits; rows first, then columns, each rounded and cut to 0 ... 255.
Tensor resize(const Tensor& image, std::int64_t height, std::int64_t width, Filter filter = Filter::bicubic);
// crop, then resize: the filter sees nothing outside the box.
Tensor crop_resize(const Tensor& image, const Box& box, std::int64_t height, std::int64_t width,
                   Filter filter = Filter::bicubic);
// The middle; where the image is smaller, it is padded with zeros first.
Tensor center_crop(const Tensor& image, std::int64_t height, std::int64_t width);
// The image resized so that its shorter side is `shorter` (the longer int(shorter * longer / shorter side)), of which
// the middle is kept, as center_crop has it. Only that is computed: a picture of one row takes no more memory.
Tensor resize_center_crop(const Tensor& image, std::int64_t shorter, std::int64_t height, std::int64_t width,
                          Filter filter = Filter::bicubic);
Tensor pad(const Tensor& image, std::int64_t left, std::int64_t top, std::int64_t right, std::int64_t bottom, int fill);

}  // namespace polygrad

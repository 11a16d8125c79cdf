// What the image functions share: an 8-bit image (channels, height, width), checked. Internal: not installed.
#pragma once

#include <cstdint>

#include "engine/error.h"
#include "engine/format.h"
#include "engine/tensor.h"

namespace polygrad {

// In row-major order. Throws ShapeError, DTypeError: expected 1 or 3 channels of u8, at least one pixel.
inline Tensor checked_u8(const char* op, const Tensor& image) {
  if (!image.defined() || image.dim() != 3 || (image.size(0) != 1 && image.size(0) != 3) || image.numel() == 0) {
    throw ShapeError(format("[{}] expected an image (1 or 3 channels, height, width), got {}", op,
                            image.defined() ? describe(image) : "none"));
  }
  if (image.dtype() != DType::u8) throw DTypeError(format("[{}] expected a u8 image, got {}", op, describe(image)));
  return image.detach().contiguous();
}

inline Tensor empty_u8(std::int64_t channels, std::int64_t height, std::int64_t width) {
  TensorOptions options;
  options.dtype = DType::u8;
  return Tensor::empty(Shape{channels, height, width}, options);
}

inline Tensor empty_like_u8(const Tensor& image) { return empty_u8(image.size(0), image.size(1), image.size(2)); }

}  // namespace polygrad

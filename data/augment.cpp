#include "data/augment.h"

#include <algorithm>
#include <cstring>

#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

namespace {

// Checks an image and gives it in row-major order.
Tensor checked(const char* op, const Tensor& image) {
  if (!image.defined() || image.dim() != 3) {
    throw ShapeError(format("[{}] expected an image (channels, height, width), got {}", op,
                            image.defined() ? describe(image) : "none"));
  }
  if (image.dtype() != DType::u8 && image.dtype() != DType::f32) {
    throw DTypeError(format("[{}] expected a u8 or f32 image, got {}", op, describe(image)));
  }
  return image.detach().contiguous();
}

TensorOptions with_dtype(DType dtype) {
  TensorOptions options;
  options.dtype = dtype;
  return options;
}

// Calls body with a null pointer of the image's element type.
template <class Body>
void dispatch(DType dtype, Body body) {
  if (dtype == DType::u8) {
    body(static_cast<const std::uint8_t*>(nullptr));
  } else {
    body(static_cast<const float*>(nullptr));
  }
}

// The number of channel c: one each, one for all, or a default.
double of_channel(const std::vector<double>& numbers, std::int64_t c, double otherwise) {
  if (numbers.empty()) return otherwise;
  return numbers[numbers.size() == 1 ? 0 : static_cast<std::size_t>(c)];
}

}  // namespace

Tensor flip_horizontal(const Tensor& image) {
  const Tensor from = checked("flip_horizontal", image);
  Tensor to = Tensor::empty(from.shape(), with_dtype(from.dtype()));
  const std::int64_t rows = from.size(0) * from.size(1), width = from.size(2);
  dispatch(from.dtype(), [&](auto* type) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
    const T* x = from.data<T>();
    T* y = to.data<T>();
    for (std::int64_t row = 0; row < rows; ++row) {
      std::reverse_copy(x + row * width, x + (row + 1) * width, y + row * width);
    }
  });
  return to;
}

Tensor shift_crop(const Tensor& image, std::int64_t padding, std::int64_t top, std::int64_t left) {
  const Tensor from = checked("shift_crop", image);
  if (padding < 0 || top < 0 || left < 0 || top > 2 * padding || left > 2 * padding) {
    throw ValueError(format("[shift_crop] window at ({}, {}) with padding {}; expected 0 <= top, left <= {}", top, left,
                            padding, 2 * padding));
  }
  const std::int64_t channels = from.size(0), height = from.size(1), width = from.size(2);
  Tensor to = Tensor::empty(from.shape(), with_dtype(from.dtype()));
  // Row y of the window is row y + down of the image, likewise columns.
  const std::int64_t down = top - padding, right = left - padding;
  const std::int64_t first = std::clamp<std::int64_t>(-right, 0, width);
  const std::int64_t end = std::clamp<std::int64_t>(width - right, first, width);
  dispatch(from.dtype(), [&](auto* type) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
    const T* x = from.data<T>();
    T* y = to.data<T>();
    std::fill(y, y + to.numel(), T(0));
    for (std::int64_t c = 0; c < channels; ++c) {
      for (std::int64_t row = 0; row < height; ++row) {
        const std::int64_t source = row + down;
        if (source < 0 || source >= height || first == end) continue;
        std::memcpy(y + (c * height + row) * width + first, x + (c * height + source) * width + first + right,
                    static_cast<std::size_t>(end - first) * sizeof(T));
      }
    }
  });
  return to;
}

Tensor normalize(const Tensor& image, const std::vector<double>& mean, const std::vector<double>& stddev) {
  const Tensor from = checked("normalize", image);
  const std::int64_t channels = from.size(0), pixels = from.size(1) * from.size(2);
  for (const auto* numbers : {&mean, &stddev}) {
    if (numbers->size() > 1 && static_cast<std::int64_t>(numbers->size()) != channels) {
      throw ValueError(format("[normalize] {} numbers for {} channels", numbers->size(), channels));
    }
  }
  for (const double value : stddev) {
    if (!(value > 0)) throw ValueError(format("[normalize] standard deviation {}; expected a positive one", value));
  }
  Tensor to = Tensor::empty(from.shape());
  dispatch(from.dtype(), [&](auto* type) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
    const double unit = std::is_same_v<T, std::uint8_t> ? 255 : 1;
    for (std::int64_t c = 0; c < channels; ++c) {
      const double scale = 1 / (unit * of_channel(stddev, c, 1));
      const double shift = -of_channel(mean, c, 0) / of_channel(stddev, c, 1);
      const T* x = from.data<T>() + c * pixels;
      float* y = to.data<float>() + c * pixels;
      for (std::int64_t i = 0; i < pixels; ++i) y[i] = static_cast<float>(static_cast<double>(x[i]) * scale + shift);
    }
  });
  return to;
}

ImageTransform::ImageTransform(AugmentOptions options) : options_(std::move(options)) {
  if (options_.crop_padding < 0) {
    throw ValueError(format("[augment] crop padding {}; expected at least 0", options_.crop_padding));
  }
}

Tensor ImageTransform::operator()(const Tensor& image, Generator& generator) const {
  Tensor result = image;
  if (options_.crop_padding > 0) {
    const std::int64_t top = generator.integer(0, 2 * options_.crop_padding + 1);
    const std::int64_t left = generator.integer(0, 2 * options_.crop_padding + 1);
    result = shift_crop(result, options_.crop_padding, top, left);
  }
  if (options_.flip && generator.bernoulli(0.5)) result = flip_horizontal(result);
  return normalize(result, options_.mean, options_.stddev);
}

}  // namespace polygrad

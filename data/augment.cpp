#include "data/augment.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "data/randaugment.h"
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
      const auto map = [&](T value) { return static_cast<float>(static_cast<double>(value) * scale + shift); };
      if constexpr (std::is_same_v<T, std::uint8_t>) {
        std::array<float, 256> table;
        for (std::size_t v = 0; v < table.size(); ++v) table[v] = map(static_cast<T>(v));
        for (std::int64_t i = 0; i < pixels; ++i) y[i] = table[x[i]];
      } else {
        for (std::int64_t i = 0; i < pixels; ++i) y[i] = map(x[i]);
      }
    }
  });
  return to;
}

Box draw_resized_crop(std::int64_t height, std::int64_t width, const std::array<double, 2>& scale,
                      Generator& generator) {
  constexpr int kTries = 10;
  constexpr double kNarrow = 3.0 / 4, kWide = 4.0 / 3;
  const auto whole = [](double value) { return static_cast<std::int64_t>(std::nearbyint(value)); };
  const auto h = static_cast<double>(height), w = static_cast<double>(width);
  for (int i = 0; i < kTries; ++i) {
    const double area = h * w * generator.uniform(scale[0], scale[1]);
    const double aspect = std::exp(generator.uniform(std::log(kNarrow), std::log(kWide)));
    const std::int64_t across = whole(std::sqrt(area * aspect)), down = whole(std::sqrt(area / aspect));
    if (across > width || down > height || across < 1 || down < 1) continue;
    const std::int64_t top = generator.integer(0, height - down + 1);
    return {top, generator.integer(0, width - across + 1), down, across};
  }
  Box box{0, 0, height, width};
  if (w / h < kNarrow) box.height = std::clamp<std::int64_t>(whole(w / kNarrow), 1, height);
  if (w / h > kWide) box.width = std::clamp<std::int64_t>(whole(h * kWide), 1, width);
  box.top = (height - box.height) / 2;
  box.left = (width - box.width) / 2;
  return box;
}

void erase_randomly(Tensor& image, Generator& generator) {
  constexpr int kTries = 10;
  constexpr double kSmallest = 0.02, kLargest = 1.0 / 3, kAspect = 0.3;
  const std::int64_t height = image.size(1), width = image.size(2);
  const auto whole = [](double value) { return static_cast<std::int64_t>(std::nearbyint(value)); };
  for (int i = 0; i < kTries; ++i) {
    const double area = static_cast<double>(height * width) * generator.uniform(kSmallest, kLargest);
    const double aspect = std::exp(generator.uniform(std::log(kAspect), std::log(1 / kAspect)));
    const std::int64_t down = whole(std::sqrt(area * aspect)), across = whole(std::sqrt(area / aspect));
    if (down >= height || across >= width) continue;
    const std::int64_t top = generator.integer(0, height - down + 1), left = generator.integer(0, width - across + 1);
    for (std::int64_t c = 0; c < image.size(0); ++c) {
      for (std::int64_t y = top; y < top + down; ++y) {
        float* row = image.data<float>() + (c * height + y) * width + left;
        for (std::int64_t x = 0; x < across; ++x) row[x] = static_cast<float>(generator.normal());
      }
    }
    return;
  }
}

ImageTransform::ImageTransform(AugmentOptions options) : options_(std::move(options)) {
  if (options_.crop_padding < 0) {
    throw ValueError(format("[augment] crop padding {}; expected at least 0", options_.crop_padding));
  }
  if (options_.height < 0 || options_.width < 0 || options_.resize < 0 ||
      (options_.height == 0) != (options_.width == 0)) {
    throw ValueError(format("[augment] a result of {} x {} after a resize to {}; expected sizes >= 0, both or none",
                            options_.height, options_.width, options_.resize));
  }
  if (options_.resized_crop && options_.height == 0)
    throw ValueError("[augment] a resized crop needs height and width");
  const auto [low, high] = options_.crop_scale;
  if (!(low > 0 && low <= high && high <= 1)) {
    throw ValueError(format("[augment] crop scale [{}, {}]; expected 0 < low <= high <= 1", low, high));
  }
  if (!(options_.random_erasing >= 0 && options_.random_erasing <= 1)) {
    throw ValueError(format("[augment] random erasing {}; expected a probability", options_.random_erasing));
  }
}

Tensor ImageTransform::pixels(const Tensor& image, Generator& generator) const {
  const AugmentOptions& o = options_;
  Tensor result = image;
  if (o.resized_crop) {
    result = crop_resize(result, draw_resized_crop(result.size(1), result.size(2), o.crop_scale, generator), o.height,
                         o.width, o.filter);
  } else if (o.height > 0) {
    if (o.resize > 0) {
      result = resize_center_crop(result, o.resize, o.height, o.width, o.filter);
    } else if (result.size(1) != o.height || result.size(2) != o.width) {
      result = center_crop(result, o.height, o.width);
    }
  }
  if (o.crop_padding > 0) {
    const std::int64_t top = generator.integer(0, 2 * o.crop_padding + 1);
    const std::int64_t left = generator.integer(0, 2 * o.crop_padding + 1);
    result = shift_crop(result, o.crop_padding, top, left);
  }
  if (o.flip && generator.bernoulli(0.5)) result = flip_horizontal(result);
  if (o.randaugment) {
    RandAugmentOptions rand;
    rand.filter = o.filter;
    rand.fill.clear();  // the colour that normalisation turns to zero
    for (const double mean : o.mean) rand.fill.push_back(static_cast<int>(std::nearbyint(255 * mean)));
    if (rand.fill.empty()) rand.fill = {0};
    result = rand_augment(result, rand, generator);
  }
  return result;
}

Tensor ImageTransform::operator()(const Tensor& image, Generator& generator) const {
  Tensor result = normalize(pixels(image, generator), options_.mean, options_.stddev);
  if (options_.random_erasing > 0 && generator.bernoulli(options_.random_erasing)) erase_randomly(result, generator);
  return result;
}

}  // namespace polygrad

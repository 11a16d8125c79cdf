#include "data/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "data/u8_image.h"

namespace polygrad {

namespace {

constexpr int kWeightBits = 22;  // of 32: 8 for the value, 2 for the sign and for weights above one
constexpr std::int64_t kLargestSide = std::int64_t{1} << 20;

struct FilterShape {
  double support;
  double (*weight)(double);
};

double bilinear(double x) {
  x = std::abs(x);
  return x < 1 ? 1 - x : 0;
}

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

double sinc(double x) {
  if (x == 0) return 1;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

double lanczos(double x) { return -3 <= x && x < 3 ? sinc(x) * sinc(x / 3) : 0; }

FilterShape shape_of(Filter filter) {
  switch (filter) {
    case Filter::bilinear:
      return {1, bilinear};
    case Filter::bicubic:
      return {2, bicubic};
    case Filter::lanczos:
      return {3, lanczos};
    case Filter::nearest:
      break;
  }
  throw ValueError("[resize] nearest is not antialiased; expected bilinear, bicubic or lanczos");
}

// How each of `out` positions is made of `in` ones: taps[i] weights from first[i] on, `stride` apart in `weights`.
struct Taps {
  std::int64_t stride = 0;
  std::vector<std::int64_t> first, count;
  std::vector<std::int32_t> weights;
};

Taps make_taps(std::int64_t in, std::int64_t out, const FilterShape& filter) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double filter_scale = std::max(scale, 1.0);
  const double support = filter.support * filter_scale, inverse = 1.0 / filter_scale;
  Taps taps;
  taps.stride = static_cast<std::int64_t>(std::ceil(support)) * 2 + 1;
  taps.weights.resize(static_cast<std::size_t>(out * taps.stride));
  std::vector<double> weights(static_cast<std::size_t>(taps.stride));
  for (std::int64_t i = 0; i < out; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<std::int64_t>(0, static_cast<std::int64_t>(center - support + 0.5));
    const auto end = std::min(in, static_cast<std::int64_t>(center + support + 0.5));
    double sum = 0;
    for (std::int64_t k = 0; k < end - first; ++k) {
      const double w = filter.weight((static_cast<double>(k + first) - center + 0.5) * inverse);
      weights[static_cast<std::size_t>(k)] = w;
      sum += w;
    }
    for (std::int64_t k = 0; k < end - first; ++k) {
      const double w = sum != 0 ? weights[static_cast<std::size_t>(k)] / sum : weights[static_cast<std::size_t>(k)];
      const double fixed = w * (1 << kWeightBits);
      taps.weights[static_cast<std::size_t>(i * taps.stride + k)] =
          static_cast<std::int32_t>(w < 0 ? fixed - 0.5 : fixed + 0.5);
    }
    taps.first.push_back(first);
    taps.count.push_back(end - first);
  }
  return taps;
}

std::uint8_t rounded(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255)); }

// Rows of `width` become rows of the taps' length.
void resize_rows(const std::uint8_t* in, std::uint8_t* out, std::int64_t rows, std::int64_t width, const Taps& taps) {
  const auto length = static_cast<std::int64_t>(taps.first.size());
  for (std::int64_t y = 0; y < rows; ++y, in += width, out += length) {
    for (std::int64_t x = 0; x < length; ++x) {
      const std::uint8_t* from = in + taps.first[static_cast<std::size_t>(x)];
      const std::int32_t* weight = taps.weights.data() + x * taps.stride;
      std::int32_t sum = 1 << (kWeightBits - 1);
      for (std::int64_t k = 0; k < taps.count[static_cast<std::size_t>(x)]; ++k) sum += from[k] * weight[k];
      out[x] = rounded(sum);
    }
  }
}

// Columns likewise, a row of sums at a time.
void resize_columns(const std::uint8_t* in, std::uint8_t* out, std::int64_t width, const Taps& taps) {
  std::vector<std::int32_t> sums(static_cast<std::size_t>(width));
  for (std::size_t y = 0; y < taps.first.size(); ++y, out += width) {
    std::fill(sums.begin(), sums.end(), 1 << (kWeightBits - 1));
    for (std::int64_t k = 0; k < taps.count[y]; ++k) {
      const std::uint8_t* from = in + (taps.first[y] + k) * width;
      const std::int32_t weight = taps.weights[y * static_cast<std::size_t>(taps.stride) + static_cast<std::size_t>(k)];
      for (std::int64_t x = 0; x < width; ++x) sums[static_cast<std::size_t>(x)] += from[x] * weight;
    }
    for (std::int64_t x = 0; x < width; ++x) out[x] = rounded(sums[static_cast<std::size_t>(x)]);
  }
}

}  // namespace

Filter parse_filter(const std::string& name) {
  if (name == "nearest") return Filter::nearest;
  if (name == "bilinear") return Filter::bilinear;
  if (name == "bicubic") return Filter::bicubic;
  if (name == "lanczos") return Filter::lanczos;
  throw ValueError(format("[resize] no filter is called '{}'; expected nearest, bilinear, bicubic or lanczos", name));
}

Tensor crop(const Tensor& image, const Box& box) {
  const Tensor from = checked_u8("crop", image);
  const std::int64_t height = from.size(1), width = from.size(2);
  if (box.height < 1 || box.width < 1 || box.top < 0 || box.left < 0 || box.height > height - box.top ||
      box.width > width - box.left) {
    throw ValueError(format("[crop] a box of {} x {} at ({}, {}) does not lie in {} x {}", box.height, box.width,
                            box.top, box.left, height, width));
  }
  if (box.height == height && box.width == width) return from;
  Tensor to = empty_u8(from.size(0), box.height, box.width);
  std::uint8_t* out = to.data<std::uint8_t>();
  for (std::int64_t c = 0; c < from.size(0); ++c) {
    for (std::int64_t y = 0; y < box.height; ++y, out += box.width) {
      std::memcpy(out, from.data<std::uint8_t>() + (c * height + box.top + y) * width + box.left,
                  static_cast<std::size_t>(box.width));
    }
  }
  return to;
}

Tensor resize(const Tensor& image, std::int64_t height, std::int64_t width, Filter filter) {
  Tensor from = checked_u8("resize", image);
  if (height < 1 || width < 1 || height > kLargestSide || width > kLargestSide) {
    throw ValueError(format("[resize] to {} x {}; expected sides from 1 to {}", height, width, kLargestSide));
  }
  const FilterShape shape = shape_of(filter);
  const std::int64_t channels = from.size(0);
  if (width != from.size(2)) {
    Tensor to = empty_u8(channels, from.size(1), width);
    resize_rows(from.data<std::uint8_t>(), to.data<std::uint8_t>(), channels * from.size(1), from.size(2),
                make_taps(from.size(2), width, shape));
    from = to;
  }
  if (height != from.size(1)) {
    Tensor to = empty_u8(channels, height, width);
    const Taps taps = make_taps(from.size(1), height, shape);
    for (std::int64_t c = 0; c < channels; ++c) {
      resize_columns(from.data<std::uint8_t>() + c * from.size(1) * width, to.data<std::uint8_t>() + c * height * width,
                     width, taps);
    }
    from = to;
  }
  return from;
}

Tensor crop_resize(const Tensor& image, const Box& box, std::int64_t height, std::int64_t width, Filter filter) {
  return resize(crop(image, box), height, width, filter);
}

Tensor resize_shorter(const Tensor& image, std::int64_t shorter, Filter filter) {
  const Tensor from = checked_u8("resize_shorter", image);
  const std::int64_t height = from.size(1), width = from.size(2);
  if (std::min(height, width) == shorter) return from;
  const auto longer = [&](std::int64_t side, std::int64_t other) {
    return static_cast<std::int64_t>(static_cast<double>(shorter * side) / static_cast<double>(other));
  };
  return width <= height ? resize(from, longer(height, width), shorter, filter)
                         : resize(from, shorter, longer(width, height), filter);
}

Tensor pad(const Tensor& image, std::int64_t left, std::int64_t top, std::int64_t right, std::int64_t bottom,
           int fill) {
  const Tensor from = checked_u8("pad", image);
  if (left < 0 || top < 0 || right < 0 || bottom < 0) throw ValueError("[pad] expected widths >= 0");
  const std::int64_t height = from.size(1), width = from.size(2);
  Tensor to = empty_u8(from.size(0), height + top + bottom, width + left + right);
  std::memset(to.data<std::uint8_t>(), fill, static_cast<std::size_t>(to.numel()));
  for (std::int64_t c = 0; c < from.size(0); ++c) {
    for (std::int64_t y = 0; y < height; ++y) {
      std::memcpy(to.data<std::uint8_t>() + (c * to.size(1) + top + y) * to.size(2) + left,
                  from.data<std::uint8_t>() + (c * height + y) * width, static_cast<std::size_t>(width));
    }
  }
  return to;
}

Tensor center_crop(const Tensor& image, std::int64_t height, std::int64_t width) {
  Tensor from = checked_u8("center_crop", image);
  if (from.size(1) < height || from.size(2) < width) {
    const std::int64_t down = std::max<std::int64_t>(0, height - from.size(1));
    const std::int64_t across = std::max<std::int64_t>(0, width - from.size(2));
    from = pad(from, across / 2, down / 2, (across + 1) / 2, (down + 1) / 2, 0);
  }
  // Python's round: a half goes to the even number.
  const auto middle = [](std::int64_t size, std::int64_t part) {
    return static_cast<std::int64_t>(std::nearbyint(static_cast<double>(size - part) / 2));
  };
  return crop(from, {middle(from.size(1), height), middle(from.size(2), width), height, width});
}

}  // namespace polygrad

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

// Those of `count` positions from `begin` on.
Taps make_taps(std::int64_t in, std::int64_t out, std::int64_t begin, std::int64_t count, const FilterShape& filter) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double filter_scale = std::max(scale, 1.0);
  const double support = filter.support * filter_scale, inverse = 1.0 / filter_scale;
  Taps taps;
  taps.stride = static_cast<std::int64_t>(std::ceil(support)) * 2 + 1;
  taps.weights.resize(static_cast<std::size_t>(count * taps.stride));
  std::vector<double> weights(static_cast<std::size_t>(taps.stride));
  for (std::int64_t i = 0; i < count; ++i) {
    const double center = (static_cast<double>(begin + i) + 0.5) * scale;
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

// The box `part` of the image at the size `height` x `width`; the rest is not computed.
Tensor resize_part(const Tensor& from, std::int64_t height, std::int64_t width, const Box& part,
                   const FilterShape& filter) {
  const std::int64_t channels = from.size(0), in_height = from.size(1), in_width = from.size(2);
  Taps down;
  std::int64_t top = part.top, end = part.top + part.height;  // of the rows that are needed
  if (height != in_height) {
    down = make_taps(in_height, height, part.top, part.height, filter);
    top = down.first.front();
    end = down.first.back() + down.count.back();
    for (std::int64_t& first : down.first) first -= top;
  }
  const std::int64_t rows = end - top;
  Tensor lines;
  if (width != in_width) {
    lines = empty_u8(channels, rows, part.width);
    const Taps across = make_taps(in_width, width, part.left, part.width, filter);
    for (std::int64_t c = 0; c < channels; ++c) {
      resize_rows(from.data<std::uint8_t>() + (c * in_height + top) * in_width,
                  lines.data<std::uint8_t>() + c * rows * part.width, rows, in_width, across);
    }
  } else {
    lines = crop(from, {top, part.left, rows, part.width});
  }
  if (height == in_height) return lines;
  Tensor to = empty_u8(channels, part.height, part.width);
  for (std::int64_t c = 0; c < channels; ++c) {
    resize_columns(lines.data<std::uint8_t>() + c * rows * part.width,
                   to.data<std::uint8_t>() + c * part.height * part.width, part.width, down);
  }
  return to;
}

// Where a part of a side begins in its middle. Python's round: a half goes to the even number.
std::int64_t middle(std::int64_t side, std::int64_t part) {
  return static_cast<std::int64_t>(std::nearbyint(static_cast<double>(side - part) / 2));
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
  const Tensor from = checked_u8("resize", image);
  if (height < 1 || width < 1 || height > kLargestSide || width > kLargestSide) {
    throw ValueError(format("[resize] to {} x {}; expected sides from 1 to {}", height, width, kLargestSide));
  }
  return resize_part(from, height, width, {0, 0, height, width}, shape_of(filter));
}

Tensor crop_resize(const Tensor& image, const Box& box, std::int64_t height, std::int64_t width, Filter filter) {
  return resize(crop(image, box), height, width, filter);
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
  return crop(from, {middle(from.size(1), height), middle(from.size(2), width), height, width});
}

Tensor resize_center_crop(const Tensor& image, std::int64_t shorter, std::int64_t height, std::int64_t width,
                          Filter filter) {
  const Tensor from = checked_u8("resize_center_crop", image);
  if (shorter < 1 || shorter > kLargestSide || height < 1 || width < 1) {
    throw ValueError(format("[resize_center_crop] the shorter side to {}, of it {} x {}; expected sides from 1 to {}",
                            shorter, height, width, kLargestSide));
  }
  const std::int64_t least = std::min(from.size(1), from.size(2));
  if (least == shorter) return center_crop(from, height, width);
  const auto side = [&](std::int64_t own) {
    return static_cast<std::int64_t>(static_cast<double>(shorter * own) / static_cast<double>(least));
  };
  const std::int64_t down = side(from.size(1)), across = side(from.size(2));
  const Box part{down > height ? middle(down, height) : 0, across > width ? middle(across, width) : 0,
                 std::min(down, height), std::min(across, width)};
  return center_crop(resize_part(from, down, across, part, shape_of(filter)), height, width);
}

}  // namespace polygrad

#include "data/geometry.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numbers>

#include "data/u8_image.h"

namespace polygrad {

namespace {

// Between b and c, d of the way: the cubic through four values with a = -1.
double cubic(double a, double b, double c, double e, double d) {
  const double p2 = -a + c, p3 = 2 * (a - b) + c - e, p4 = -a + b - c + e;
  return b + d * (p2 + d * (p3 + d * p4));
}

std::uint8_t cut(double value) {
  if (value <= 0) return 0;
  if (value >= 255) return 255;
  return static_cast<std::uint8_t>(value);
}

struct View {
  const std::uint8_t* pixels;
  std::uint8_t* out;
  std::int64_t channels, height, width;
};

// Pixel i of the output comes from (x, y) of the input, which lies inside it; both count from the pixel's corner.
void sample_bilinear(const View& view, std::int64_t i, double x, double y) {
  x -= 0.5;
  y -= 0.5;
  const double floor_x = std::floor(x), floor_y = std::floor(y), dx = x - floor_x, dy = y - floor_y;
  const auto column = [&](std::int64_t k) {
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(floor_x) + k, 0, view.width - 1);
  };
  const auto row = [&](std::int64_t k) {
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(floor_y) + k, 0, view.height - 1) * view.width;
  };
  const std::int64_t x0 = column(0), x1 = column(1), y0 = row(0), y1 = row(1);
  const std::int64_t plane = view.height * view.width;
  for (std::int64_t c = 0; c < view.channels; ++c) {
    const std::uint8_t* in = view.pixels + c * plane;
    const double top = in[y0 + x0] + (in[y0 + x1] - in[y0 + x0]) * dx;
    const double bottom = in[y1 + x0] + (in[y1 + x1] - in[y1 + x0]) * dx;
    view.out[c * plane + i] = static_cast<std::uint8_t>(top + (bottom - top) * dy);
  }
}

void sample_bicubic(const View& view, std::int64_t i, double x, double y) {
  x -= 0.5;
  y -= 0.5;
  const double floor_x = std::floor(x), floor_y = std::floor(y), dx = x - floor_x, dy = y - floor_y;
  std::array<std::int64_t, 4> columns, rows;
  for (std::int64_t k = 0; k < 4; ++k) {
    const auto at = static_cast<std::size_t>(k);
    columns[at] = std::clamp<std::int64_t>(static_cast<std::int64_t>(floor_x) + k - 1, 0, view.width - 1);
    rows[at] = std::clamp<std::int64_t>(static_cast<std::int64_t>(floor_y) + k - 1, 0, view.height - 1) * view.width;
  }
  const std::int64_t plane = view.height * view.width;
  for (std::int64_t c = 0; c < view.channels; ++c) {
    const std::uint8_t* in = view.pixels + c * plane;
    std::array<double, 4> lines;
    for (std::size_t k = 0; k < 4; ++k) {
      const std::uint8_t* line = in + rows[k];
      lines[k] = cubic(line[columns[0]], line[columns[1]], line[columns[2]], line[columns[3]], dx);
    }
    view.out[c * plane + i] = cut(cubic(lines[0], lines[1], lines[2], lines[3], dy));
  }
}

template <class Sample>
void transform(const View& view, const std::array<double, 6>& m, Sample sample) {
  const auto width = static_cast<double>(view.width), height = static_cast<double>(view.height);
  for (std::int64_t y = 0; y < view.height; ++y) {
    const double y_mid = static_cast<double>(y) + 0.5;
    for (std::int64_t x = 0; x < view.width; ++x) {
      const double x_mid = static_cast<double>(x) + 0.5;
      const double x_in = m[0] * x_mid + m[1] * y_mid + m[2], y_in = m[3] * x_mid + m[4] * y_mid + m[5];
      if (!(x_in >= 0 && x_in < width && y_in >= 0 && y_in < height)) continue;
      sample(view, y * view.width + x, x_in, y_in);
    }
  }
}

// Pillow walks in 16.16 fixed point here.
void transform_nearest(const View& view, const std::array<double, 6>& m) {
  static constexpr double kOne = 65536, kFar = 1 << 30;
  const auto fixed = [](double value) {
    return static_cast<std::int64_t>(std::floor(std::clamp(value, -kFar, kFar) * kOne + 0.5));
  };
  const std::int64_t plane = view.height * view.width;
  std::int64_t row_x = fixed(m[2] + m[0] * 0.5 + m[1] * 0.5), row_y = fixed(m[5] + m[3] * 0.5 + m[4] * 0.5);
  for (std::int64_t y = 0; y < view.height; ++y, row_x += fixed(m[1]), row_y += fixed(m[4])) {
    std::int64_t x_in = row_x, y_in = row_y;
    for (std::int64_t x = 0; x < view.width; ++x, x_in += fixed(m[0]), y_in += fixed(m[3])) {
      const std::int64_t column = x_in >> 16, row = y_in >> 16;
      if (column < 0 || column >= view.width || row < 0 || row >= view.height) continue;
      for (std::int64_t c = 0; c < view.channels; ++c) {
        view.out[c * plane + y * view.width + x] = view.pixels[c * plane + row * view.width + column];
      }
    }
  }
}

// Python's round(value, 15): the nearest decimal of 15 places.
double round_15(double value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, 15).ptr;
  double result = value;
  std::from_chars(text, end, result);
  return result;
}

// Quarter turns counter-clockwise, as Pillow's transpose does them.
Tensor quarter_turns(const Tensor& from, int turns) {
  const std::int64_t channels = from.size(0), height = from.size(1), width = from.size(2);
  Tensor to = turns == 2 ? empty_like_u8(from) : empty_u8(channels, width, height);
  const std::uint8_t* in = from.data<std::uint8_t>();
  std::uint8_t* out = to.data<std::uint8_t>();
  for (std::int64_t c = 0; c < channels; ++c, in += height * width) {
    for (std::int64_t y = 0; y < to.size(1); ++y) {
      for (std::int64_t x = 0; x < to.size(2); ++x) {
        const std::int64_t row = turns == 1 ? x : turns == 2 ? height - 1 - y : height - 1 - x;
        const std::int64_t column = turns == 1 ? width - 1 - y : turns == 2 ? width - 1 - x : y;
        *out++ = in[row * width + column];
      }
    }
  }
  return to;
}

}  // namespace

Tensor affine(const Tensor& image, const std::array<double, 6>& m, Filter filter, const Fill& fill) {
  const Tensor from = checked_u8("affine", image);
  const std::int64_t channels = from.size(0), plane = from.size(1) * from.size(2);
  if (fill.empty() || (fill.size() > 1 && static_cast<std::int64_t>(fill.size()) != channels)) {
    throw ValueError(format("[affine] a fill of {} numbers for {} channels", fill.size(), channels));
  }
  Tensor to = empty_like_u8(from);
  for (std::int64_t c = 0; c < channels; ++c) {
    const int value = fill[fill.size() == 1 ? 0 : static_cast<std::size_t>(c)];
    std::memset(to.data<std::uint8_t>() + c * plane, std::clamp(value, 0, 255), static_cast<std::size_t>(plane));
  }
  const View view{from.data<std::uint8_t>(), to.data<std::uint8_t>(), channels, from.size(1), from.size(2)};
  switch (filter) {
    case Filter::nearest:
      transform_nearest(view, m);
      break;
    case Filter::bilinear:
      transform(view, m, sample_bilinear);
      break;
    case Filter::bicubic:
      transform(view, m, sample_bicubic);
      break;
    case Filter::lanczos:
      throw ValueError("[affine] lanczos is for resizing; expected nearest, bilinear or bicubic");
  }
  return to;
}

Tensor rotate(const Tensor& image, double degrees, Filter filter, const Fill& fill) {
  const Tensor from = checked_u8("rotate", image);
  double turn = std::fmod(degrees, 360.0);
  if (turn < 0) turn += 360;
  if (turn == 0) return from.clone();
  if (turn == 180) return quarter_turns(from, 2);
  if ((turn == 90 || turn == 270) && from.size(1) == from.size(2)) return quarter_turns(from, turn == 90 ? 1 : 3);
  const double angle = -(turn * (std::numbers::pi / 180)), middle_x = static_cast<double>(from.size(2)) / 2.0,
               middle_y = static_cast<double>(from.size(1)) / 2.0;
  std::array<double, 6> m = {round_15(std::cos(angle)),  round_15(std::sin(angle)), 0.0,
                             round_15(-std::sin(angle)), round_15(std::cos(angle)), 0.0};
  m[2] = m[0] * -middle_x + m[1] * -middle_y + m[2];
  m[5] = m[3] * -middle_x + m[4] * -middle_y + m[5];
  m[2] += middle_x;
  m[5] += middle_y;
  return affine(from, m, filter, fill);
}

Tensor shear_x(const Tensor& image, double factor, Filter filter, const Fill& fill) {
  return affine(image, {1, factor, 0, 0, 1, 0}, filter, fill);
}

Tensor shear_y(const Tensor& image, double factor, Filter filter, const Fill& fill) {
  return affine(image, {1, 0, 0, factor, 1, 0}, filter, fill);
}

Tensor translate_x(const Tensor& image, double share, Filter filter, const Fill& fill) {
  const Tensor from = checked_u8("translate_x", image);
  return affine(from, {1, 0, share * static_cast<double>(from.size(2)), 0, 1, 0}, filter, fill);
}

Tensor translate_y(const Tensor& image, double share, Filter filter, const Fill& fill) {
  const Tensor from = checked_u8("translate_y", image);
  return affine(from, {1, 0, 0, 0, 1, share * static_cast<double>(from.size(1))}, filter, fill);
}

}  // namespace polygrad

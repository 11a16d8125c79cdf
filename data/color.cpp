#include "data/color.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "data/u8_image.h"

namespace polygrad {

namespace {

using Table = std::array<std::uint8_t, 256>;
using Histogram = std::array<std::int64_t, 256>;

std::uint8_t clip(int value) { return static_cast<std::uint8_t>(std::clamp(value, 0, 255)); }

// out = table[in]; `make(plane, count)` gives each channel's table.
template <class Make>
Tensor by_table(const char* op, const Tensor& image, Make make) {
  const Tensor from = checked_u8(op, image);
  Tensor to = empty_like_u8(from);
  const std::int64_t count = from.size(1) * from.size(2);
  for (std::int64_t c = 0; c < from.size(0); ++c) {
    const std::uint8_t* in = from.data<std::uint8_t>() + c * count;
    std::uint8_t* out = to.data<std::uint8_t>() + c * count;
    const Table table = make(in, count);
    for (std::int64_t i = 0; i < count; ++i) out[i] = table[in[i]];
  }
  return to;
}

template <class Map>
Tensor by_value(const char* op, const Tensor& image, Map map) {
  Table table;
  for (int v = 0; v < 256; ++v) table[static_cast<std::size_t>(v)] = clip(map(v));
  return by_table(op, image, [&](const std::uint8_t*, std::int64_t) { return table; });
}

Histogram histogram_of(const std::uint8_t* values, std::int64_t count) {
  Histogram histogram{};
  for (std::int64_t i = 0; i < count; ++i) ++histogram[values[i]];
  return histogram;
}

Table identity_table() {
  Table table;
  for (int v = 0; v < 256; ++v) table[static_cast<std::size_t>(v)] = static_cast<std::uint8_t>(v);
  return table;
}

// Pillow's ImagingBlend in one channel, in float32: within [0, 1] the result can't leave 0 ... 255.
std::uint8_t blend(int other, int own, float factor) {
  const float value = static_cast<float>(other) + factor * static_cast<float>(own - other);
  if (value <= 0) return 0;
  if (value >= 255) return 255;
  return static_cast<std::uint8_t>(value);
}

// `other(c, i)`: pixel i of channel c of the image that is blended with.
template <class Other>
Tensor blend_with(const Tensor& from, double factor, Other other) {
  Tensor to = empty_like_u8(from);
  const std::int64_t count = from.size(1) * from.size(2);
  const auto f = static_cast<float>(factor);
  const std::uint8_t* in = from.data<std::uint8_t>();
  std::uint8_t* out = to.data<std::uint8_t>();
  for (std::int64_t c = 0; c < from.size(0); ++c, in += count, out += count) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = blend(other(c, i), in[i], f);
  }
  return to;
}

}  // namespace

Tensor to_grey(const Tensor& image) {
  const Tensor from = checked_u8("to_grey", image);
  if (from.size(0) == 1) return from;
  Tensor to = empty_u8(1, from.size(1), from.size(2));
  const std::int64_t count = to.numel();
  const std::uint8_t* red = from.data<std::uint8_t>();
  const std::uint8_t *green = red + count, *blue = green + count;
  std::uint8_t* out = to.data<std::uint8_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<std::uint8_t>((19595u * red[i] + 38470u * green[i] + 7471u * blue[i] + 32768u) >> 16);
  }
  return to;
}

Tensor grey_to_rgb(const Tensor& image) {
  const Tensor from = checked_u8("grey_to_rgb", image);
  if (from.size(0) == 3) return from;
  Tensor to = empty_u8(3, from.size(1), from.size(2));
  const auto bytes = static_cast<std::size_t>(from.numel());
  for (std::size_t c = 0; c < 3; ++c)
    std::memcpy(to.data<std::uint8_t>() + c * bytes, from.data<std::uint8_t>(), bytes);
  return to;
}

Tensor auto_contrast(const Tensor& image) {
  return by_table("auto_contrast", image, [](const std::uint8_t* values, std::int64_t count) {
    const auto [low, high] = std::minmax_element(values, values + count);
    Table table = identity_table();
    if (*high <= *low) return table;
    const double scale = 255.0 / (*high - *low), offset = -*low * scale;
    for (int v = 0; v < 256; ++v) table[static_cast<std::size_t>(v)] = clip(static_cast<int>(v * scale + offset));
    return table;
  });
}

Tensor equalize(const Tensor& image) {
  return by_table("equalize", image, [](const std::uint8_t* values, std::int64_t count) {
    const Histogram histogram = histogram_of(values, count);
    Table table = identity_table();
    std::int64_t filled = 0, last = 0;
    for (const std::int64_t n : histogram) {
      filled += n > 0;
      if (n > 0) last = n;
    }
    const std::int64_t step = (count - last) / 255;
    if (filled <= 1 || step == 0) return table;
    std::int64_t n = step / 2;
    for (std::size_t v = 0; v < 256; ++v) {
      table[v] = static_cast<std::uint8_t>(std::min<std::int64_t>(n / step, 255));
      n += histogram[v];
    }
    return table;
  });
}

Tensor invert(const Tensor& image) {
  return by_value("invert", image, [](int v) { return 255 - v; });
}

Tensor posterize(const Tensor& image, int bits) {
  if (bits < 0 || bits > 8) throw ValueError(format("[posterize] {} bits; expected 0 to 8", bits));
  const int mask = ~((1 << (8 - bits)) - 1) & 0xFF;
  return by_value("posterize", image, [mask](int v) { return v & mask; });
}

Tensor solarize(const Tensor& image, int threshold) {
  return by_value("solarize", image, [threshold](int v) { return v < threshold ? v : 255 - v; });
}

Tensor solarize_add(const Tensor& image, int add, int threshold) {
  return by_value("solarize_add", image, [=](int v) { return v < threshold ? std::min(255, v + add) : v; });
}

Tensor adjust_color(const Tensor& image, double factor) {
  const Tensor from = checked_u8("adjust_color", image), grey = to_grey(from);
  const std::uint8_t* other = grey.data<std::uint8_t>();
  return blend_with(from, factor, [other](std::int64_t, std::int64_t i) { return other[i]; });
}

Tensor adjust_contrast(const Tensor& image, double factor) {
  const Tensor from = checked_u8("adjust_contrast", image), grey = to_grey(from);
  const std::uint8_t* values = grey.data<std::uint8_t>();
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < grey.numel(); ++i) sum += values[i];
  const int mean = static_cast<int>(static_cast<double>(sum) / static_cast<double>(grey.numel()) + 0.5);
  return blend_with(from, factor, [mean](std::int64_t, std::int64_t) { return mean; });
}

Tensor adjust_brightness(const Tensor& image, double factor) {
  return blend_with(checked_u8("adjust_brightness", image), factor, [](std::int64_t, std::int64_t) { return 0; });
}

Tensor adjust_sharpness(const Tensor& image, double factor) {
  const Tensor from = checked_u8("adjust_sharpness", image);
  const std::int64_t height = from.size(1), width = from.size(2);
  Tensor smooth = from.clone();  // the border stays
  for (std::int64_t c = 0; c < from.size(0); ++c) {
    const std::uint8_t* in = from.data<std::uint8_t>() + c * height * width;
    std::uint8_t* out = smooth.data<std::uint8_t>() + c * height * width;
    for (std::int64_t y = 1; y + 1 < height; ++y) {
      for (std::int64_t x = 1; x + 1 < width; ++x) {
        const std::uint8_t* at = in + y * width + x;
        int sum = 4 * at[0];
        for (const std::int64_t row : {-width, std::int64_t{0}, width}) sum += at[row - 1] + at[row] + at[row + 1];
        out[y * width + x] = static_cast<std::uint8_t>((2 * sum + 13) / 26);  // sum / 13, rounded; never a tie
      }
    }
  }
  const std::uint8_t* other = smooth.data<std::uint8_t>();
  const std::int64_t count = height * width;
  return blend_with(from, factor, [=](std::int64_t c, std::int64_t i) { return other[c * count + i]; });
}

}  // namespace polygrad

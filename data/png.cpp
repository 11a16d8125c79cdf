// The letters are those of stb_easy_font, which gives them as rectangles.
#include "data/png.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "data/stb_picture.h"
#include "data/u8_image.h"
#include "engine/file.h"

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
#include <stb_easy_font.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

namespace polygrad {

namespace {

std::string plain(const std::string& text) {
  std::string result;
  for (const char c : text) result += c >= 32 && c < 127 ? c : '?';
  return result;
}

}  // namespace

std::string png_bytes(const Tensor& image) {
  // The writer counts in int, adds a byte to each row and doubles its memory when it is full.
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 28;
  if (image.defined() && image.numel() > kMostBytes) {
    throw ValueError(format("[write_png] {}; expected at most {} bytes", describe(image), kMostBytes));
  }
  const Tensor from = checked_u8("write_png", image);
  const std::int64_t channels = from.size(0), plane = from.size(1) * from.size(2);
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(from.numel()));
  const std::uint8_t* in = from.data<std::uint8_t>();
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t i = 0; i < plane; ++i) pixels[static_cast<std::size_t>(i * channels + c)] = in[c * plane + i];
  }
  std::string bytes = stb_png(pixels.data(), from.size(2), from.size(1), static_cast<int>(channels));
  if (bytes.empty()) throw OutOfMemoryError("[write_png] no memory for the file");
  return bytes;
}

void write_png(const std::string& path, const Tensor& image) { write_file_atomically(path, png_bytes(image)); }

std::int64_t text_width(const std::string& text) {
  std::string copy = plain(text);
  return stb_easy_font_width(copy.data());
}

void draw_text(Tensor& picture, const std::string& text, std::int64_t top, std::int64_t left, std::int64_t scale,
               int red, int green, int blue) {
  struct Corner {
    float x, y, z;
    unsigned char color[4];
  };
  constexpr std::size_t kBytesPerLetter = 1024;  // stb_easy_font: about 270, of an 8 more than 400
  std::string copy = plain(text);
  std::vector<Corner> corners(copy.size() * kBytesPerLetter / sizeof(Corner) + 4);
  const int quads = stb_easy_font_print(0, 0, copy.data(), nullptr, corners.data(),
                                        static_cast<int>(corners.size() * sizeof(Corner)));
  const int colors[3] = {red, green, blue};
  const std::int64_t height = picture.size(1), width = picture.size(2);
  for (int q = 0; q < quads; ++q) {
    const Corner& first = corners[static_cast<std::size_t>(4 * q)];
    const Corner& third = corners[static_cast<std::size_t>(4 * q + 2)];
    const auto place = [&](float at, std::int64_t from, std::int64_t end) {
      return std::clamp<std::int64_t>(from + static_cast<std::int64_t>(at) * scale, 0, end);
    };
    const std::int64_t y0 = place(first.y, top, height), y1 = place(third.y, top, height);
    const std::int64_t x0 = place(first.x, left, width), x1 = place(third.x, left, width);
    for (std::int64_t c = 0; c < 3; ++c) {
      for (std::int64_t y = y0; y < y1; ++y) {
        std::uint8_t* row = picture.data<std::uint8_t>() + (c * height + y) * width;
        std::fill(row + x0, row + std::max(x0, x1), static_cast<std::uint8_t>(colors[c]));
      }
    }
  }
}

}  // namespace polygrad

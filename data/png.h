// Writing PNG files: contact sheets, confusion pictures, attention maps.
//
// Where this stands: above stb_picture.h. Reading them is decode.h's.
#pragma once

#include <string>

#include "engine/tensor.h"

namespace polygrad {

// (1 or 3, H, W) u8, up to 256 MiB (ValueError). The file appears whole or not at all. Throws ShapeError, DTypeError,
// IoError.
void write_png(const std::string& path, const Tensor& image);
std::string png_bytes(const Tensor& image);

// Draws `text` (ASCII; other bytes as '?') into a (3, H, W) u8 picture, its upper left corner at (top, left), each dot
// `scale` pixels wide; what leaves the picture is cut off.
void draw_text(Tensor& picture, const std::string& text, std::int64_t top, std::int64_t left, std::int64_t scale,
               int red, int green, int blue);
constexpr std::int64_t kTextHeight = 10;  // of a line, at scale 1
// The width of `text` at scale 1.
std::int64_t text_width(const std::string& text);

}  // namespace polygrad

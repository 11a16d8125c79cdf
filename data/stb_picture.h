// stb_image's decoders and stb_image_write's PNG writer, compiled static: no symbol and no global flag of them is
// shared with an application's own copy. Internal: not installed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace polygrad {

struct StbPicture {
  std::int64_t width = 0, height = 0;
  std::unique_ptr<std::uint8_t, void (*)(void*)> pixels{nullptr, [](void*) {}};  // RGB, interleaved
};

// Width and height of the header alone; false where it can't be read.
bool stb_size(std::string_view bytes, std::int64_t& width, std::int64_t& height);
// Decodes PNG, BMP, binary PNM or JPEG, taking at most `max_bytes` of memory in all. "" where it worked, else why not.
std::string stb_decode(std::string_view bytes, std::size_t max_bytes, StbPicture& picture);
// The bytes of a PNG file of interleaved u8 pixels with 1 or 3 channels.
std::string stb_png(const std::uint8_t* pixels, std::int64_t width, std::int64_t height, int channels);

}  // namespace polygrad

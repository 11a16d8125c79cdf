// The only place that compiles stb_image's decoders. Memory goes through a budget of the calling thread, so that no
// stream unpacks to more than its header promised.
#include "data/stb_picture.h"

#include <cstdlib>
#include <limits>

namespace {

thread_local std::size_t t_budget = 0;  // bytes that the decoder may still take

void* limited_realloc(void* pointer, std::size_t old_bytes, std::size_t bytes) {
  const std::size_t more = bytes > old_bytes ? bytes - old_bytes : 0;
  if (more > t_budget) return nullptr;
  // Zeroed: stb_image reads the coefficients of a progressive JPEG that has no first scan as it finds them.
  void* result = pointer ? std::realloc(pointer, bytes) : std::calloc(1, bytes);
  if (result) t_budget -= more;
  return result;
}

}  // namespace

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wsign-compare"
#endif
#define STBI_MALLOC(bytes) limited_realloc(nullptr, 0, bytes)
#define STBI_REALLOC_SIZED(pointer, old_bytes, bytes) limited_realloc(pointer, old_bytes, bytes)
#define STBI_REALLOC(pointer, bytes) limited_realloc(pointer, 0, bytes)
#define STBI_FREE(pointer) std::free(pointer)
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#define STBI_FAILURE_USERMSG
#define STBI_NO_STDIO
#define STBI_NO_LINEAR
#define STBI_NO_HDR
#define STBI_NO_PSD
#define STBI_NO_TGA
#define STBI_NO_GIF
#define STBI_NO_PIC
#include <stb_image.h>
#define STB_IMAGE_WRITE_STATIC
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STBI_WRITE_NO_STDIO
#include <stb_image_write.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

namespace polygrad {

namespace {

constexpr std::size_t kIntMax = std::numeric_limits<int>::max();

const stbi_uc* stb_bytes(std::string_view bytes) { return reinterpret_cast<const stbi_uc*>(bytes.data()); }

}  // namespace

bool stb_size(std::string_view bytes, std::int64_t& width, std::int64_t& height) {
  if (bytes.size() > kIntMax) return false;
  t_budget = std::size_t{1} << 20;
  int w = 0, h = 0, channels = 0;
  if (!stbi_info_from_memory(stb_bytes(bytes), static_cast<int>(bytes.size()), &w, &h, &channels)) return false;
  width = w;
  height = h;
  return true;
}

std::string stb_decode(std::string_view bytes, std::size_t max_bytes, StbPicture& picture) {
  if (bytes.size() > kIntMax) return "more than 2 GiB";
  t_budget = max_bytes;
  // Apple's variant of PNG holds BGR, multiplied by alpha: these two flags, of our own copy alone, turn it back.
  static const bool flags_set = [] {
    stbi_convert_iphone_png_to_rgb(1);
    stbi_set_unpremultiply_on_load(1);
    return true;
  }();
  static_cast<void>(flags_set);
  int width = 0, height = 0, channels = 0;
  stbi_uc* pixels =
      stbi_load_from_memory(stb_bytes(bytes), static_cast<int>(bytes.size()), &width, &height, &channels, 3);
  if (!pixels) {
    const char* reason = stbi_failure_reason();
    return reason && *reason ? reason : "the data is damaged";
  }
  picture.width = width;
  picture.height = height;
  picture.pixels = {pixels, [](void* pointer) { std::free(pointer); }};
  return "";
}

std::string stb_png(const std::uint8_t* pixels, std::int64_t width, std::int64_t height, int channels) {
  int length = 0;
  unsigned char* png = stbi_write_png_to_mem(pixels, static_cast<int>(width) * channels, static_cast<int>(width),
                                             static_cast<int>(height), channels, &length);
  if (!png) return "";
  std::string bytes(reinterpret_cast<const char*>(png), static_cast<std::size_t>(length));
  std::free(png);
  return bytes;
}

}  // namespace polygrad

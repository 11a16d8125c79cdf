#include "data/jpeg.h"

#include <cstring>
#include <memory>

#include "engine/format.h"

#ifdef POLYGRAD_HAVE_TURBOJPEG
#include <turbojpeg.h>
#endif

namespace polygrad {

namespace {

int byte_at(std::string_view bytes, std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); }

std::uint32_t number(std::string_view bytes, std::size_t at, int count, bool big_endian) {
  std::uint32_t value = 0;
  for (int i = 0; i < count; ++i) {
    const int byte = byte_at(bytes, at + static_cast<std::size_t>(big_endian ? i : count - 1 - i));
    value = value << 8 | static_cast<std::uint32_t>(byte);
  }
  return value;
}

bool is_frame(int marker) {
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}
bool is_restart(int marker) { return marker >= 0xD0 && marker <= 0xD7; }
constexpr int kStart = 0xD8, kEnd = 0xD9, kScan = 0xDA, kApp1 = 0xE1, kTemporary = 0x01, kStuffed = 0x00;
constexpr int kHuffman = 0xC4, kQuantization = 0xDB;

// The place of the next marker's low byte at or after `at`: behind any junk and fill bytes; npos where there is none.
std::size_t next_marker(std::string_view bytes, std::size_t at) {
  while (at < bytes.size()) {
    const void* found = std::memchr(bytes.data() + at, 0xFF, bytes.size() - at);
    if (!found) return std::string_view::npos;
    at = static_cast<std::size_t>(static_cast<const char*>(found) - bytes.data()) + 1;
    while (at < bytes.size() && byte_at(bytes, at) == 0xFF) ++at;
    if (at < bytes.size() && byte_at(bytes, at) != kStuffed) return at;
  }
  return std::string_view::npos;
}

void read_frame(std::string_view segment, int marker, JpegHeader& header) {
  if (segment.size() < 6 || header.has_frame) return;
  header.has_frame = true;
  header.frame = marker;
  header.precision = byte_at(segment, 0);
  header.height = number(segment, 1, 2, true);
  header.width = number(segment, 3, 2, true);
}

}  // namespace

int exif_orientation(std::string_view block) {
  constexpr std::size_t kHeader = 8, kEntry = 12;
  constexpr std::uint32_t kOrientation = 0x0112, kShort = 3;
  if (block.size() < kHeader) return 1;
  const bool big = block.substr(0, 2) == "MM";
  if ((!big && block.substr(0, 2) != "II") || number(block, 2, 2, big) != 42) return 1;
  const std::size_t table = number(block, 4, 4, big);
  if (table < kHeader || table > block.size() || block.size() - table < 2) return 1;
  const std::uint32_t entries = number(block, table, 2, big);
  for (std::uint32_t i = 0; i < entries; ++i) {
    const std::size_t at = table + 2 + i * kEntry;
    if (at + kEntry > block.size()) return 1;
    if (number(block, at, 2, big) != kOrientation) continue;
    if (number(block, at + 2, 2, big) != kShort) return 1;
    const std::uint32_t value = number(block, at + 8, 2, big);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

JpegHeader read_jpeg_header(std::string_view bytes) {
  constexpr std::string_view kExif("Exif\0\0", 6);
  JpegHeader header;
  bool oriented = false;
  std::size_t at = 2;  // behind SOI
  while ((at = next_marker(bytes, at)) != std::string_view::npos) {
    const int marker = byte_at(bytes, at++);
    if (marker == kEnd) {
      header.has_end = true;
      break;
    }
    // Restart markers come up here inside a scan too: everything between two markers is the scan's data.
    if (marker == kStart || marker == kTemporary || is_restart(marker)) continue;
    if (at + 2 > bytes.size()) break;
    const std::size_t length = number(bytes, at, 2, true);
    if (length < 2 || length > bytes.size() - at) {
      if (header.has_scan) continue;  // damage inside a scan that looks like a marker
      break;
    }
    const std::string_view segment = bytes.substr(at + 2, length - 2);
    if (is_frame(marker)) read_frame(segment, marker, header);
    if (marker == kScan) header.has_scan = true;
    if (marker == kHuffman) header.has_huffman = true;
    if (marker == kQuantization) header.has_quantization = true;
    if (marker == kApp1 && !oriented && segment.substr(0, kExif.size()) == kExif) {
      oriented = true;
      header.orientation = exif_orientation(segment.substr(kExif.size()));
    }
    at += length;
  }
  // Damage may have led the walk past the end mark: the file's last bytes tell as well.
  const std::size_t last = bytes.find_last_not_of('\0');
  if (last != std::string_view::npos && last >= 1 && bytes.substr(last - 1, 2) == "\xFF\xD9") header.has_end = true;
  return header;
}

#ifdef POLYGRAD_HAVE_TURBOJPEG

namespace {

// A new one for each picture: a handle keeps the tables of the last one, which a file without its own would be decoded
// with.
struct Handle {
  tjhandle handle = tjInitDecompress();
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (handle) tjDestroy(handle);
  }
};

}  // namespace

bool has_turbo() { return true; }

std::string turbo_decode(std::string_view bytes, std::int64_t max_pixels, TurboPicture& picture) {
  const Handle owner;
  const tjhandle handle = owner.handle;
  if (!handle) return "libjpeg-turbo has no memory";
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto size = static_cast<unsigned long>(bytes.size());
  int width = 0, height = 0, subsampling = 0, colours = -1;
  // It also fails for a sampling that has no name in its table; the sizes stand then, and the decoder can do it.
  const int failed = tjDecompressHeader3(handle, data, size, &width, &height, &subsampling, &colours);
  if (width <= 0 || height <= 0) return failed ? tjGetErrorStr2(handle) : "no size in the header";
  if (static_cast<std::int64_t>(width) * height > max_pixels) return format("{} x {} pixels", width, height);
  const bool cmyk = colours == TJCS_CMYK || colours == TJCS_YCCK, grey = colours == TJCS_GRAY;
  picture.width = width;
  picture.height = height;
  picture.channels = cmyk ? 4 : grey ? 1 : 3;
  picture.pixels.resize(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) *
                        static_cast<std::size_t>(picture.channels));
  // Width and height are given, so that no second header in the file can make the output larger than the memory.
  const int result = tjDecompress2(handle, data, size, picture.pixels.data(), width, width * picture.channels, height,
                                   cmyk   ? TJPF_CMYK
                                   : grey ? TJPF_GRAY
                                          : TJPF_RGB,
                                   TJFLAG_ACCURATEDCT | TJFLAG_LIMITSCANS);
  if (result == 0) return "";
  // TurboJPEG calls an error a warning where a warning came before it; the text is then the error's. So damage that
  // libjpeg works round is told by its texts (jerror.h).
  const std::string message = tjGetErrorStr2(handle);
  for (const char* warning : {"Corrupt JPEG data", "Premature end of JPEG file", "Warning: unknown JFIF",
                              "Unknown Adobe", "Inconsistent progression", "Invalid SOS parameters for sequential"}) {
    if (tjGetErrorCode(handle) == TJERR_WARNING && message.rfind(warning, 0) == 0) return "";
  }
  return message;
}

#else

bool has_turbo() { return false; }

std::string turbo_decode(std::string_view, std::int64_t, TurboPicture&) { return "built without libjpeg-turbo"; }

#endif

}  // namespace polygrad

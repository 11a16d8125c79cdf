#include "data/decode.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "data/color.h"
#include "data/inflate.h"
#include "data/jpeg.h"
#include "data/stb_picture.h"
#include "engine/format.h"

namespace polygrad {

namespace {

// No deflate stream grows by more (zlib's documentation); no JPEG needs less than a bit for a block of 64 coefficients,
// and at most 16 blocks of its finest component share that bit's 32 x 32 pixels.
constexpr std::int64_t kDeflateRatio = 1032, kJpegPixelsPerByte = 1024;
// Below this a header is believed: an incomplete progressive file may hold next to nothing for its size.
constexpr std::int64_t kHarmlessPixels = std::int64_t{1} << 23;
// What stb_image takes in all: a 16-bit interlaced RGBA picture holds 8 bytes a pixel several times.
constexpr std::size_t kStbBytesPerPixel = 48, kStbBytesBeside = std::size_t{1} << 21;

struct Source {
  std::string_view bytes;
  const std::string& name;

  [[noreturn]] void fail(ImageFault fault, const std::string& why) const {
    throw ImageError(fault, format("[image] {} ({} bytes): {}: {}", name, bytes.size(), to_string(fault), why));
  }
  bool begins_with(std::string_view magic, std::size_t at = 0) const {
    return bytes.substr(std::min(at, bytes.size()), magic.size()) == magic;
  }
  std::uint32_t number(std::size_t at, int count, bool big_endian) const {
    std::uint32_t value = 0;
    for (int i = 0; i < count; ++i) {
      const std::size_t place = at + static_cast<std::size_t>(big_endian ? i : count - 1 - i);
      value = value << 8 | static_cast<std::uint8_t>(bytes[place]);
    }
    return value;
  }
};

void check_size(const Source& source, std::int64_t width, std::int64_t height) {
  if (width <= 0 || height <= 0) source.fail(ImageFault::corrupt, format("its header says {} x {}", width, height));
  if (width > kMaxPixels / height) {
    source.fail(ImageFault::too_large,
                format("its header says {} x {}; expected at most {} pixels", width, height, kMaxPixels));
  }
}

TensorOptions bytes_option() {
  TensorOptions options;
  options.dtype = DType::u8;
  return options;
}

// Interleaved pixels -> planes. Channels 1 are copied into each plane; 4 are CMYK as stored (Adobe: inverted).
Tensor planes(const std::uint8_t* pixels, std::int64_t width, std::int64_t height, int channels) {
  Tensor image = Tensor::empty(Shape{3, height, width}, bytes_option());
  const std::int64_t count = width * height;
  std::uint8_t* red = image.data<std::uint8_t>();
  std::uint8_t *green = red + count, *blue = green + count;
  if (channels == 1) {
    for (std::uint8_t* plane : {red, green, blue}) std::memcpy(plane, pixels, static_cast<std::size_t>(count));
  } else if (channels == 3) {
    for (std::int64_t i = 0; i < count; ++i) {
      red[i] = pixels[3 * i];
      green[i] = pixels[3 * i + 1];
      blue[i] = pixels[3 * i + 2];
    }
  } else {
    // Pillow: k' - c' k' / 255 rounded, with c' = 255 - stored, k' = stored.
    const auto convert = [](int stored, int key) {
      const int product = (255 - stored) * key + 128;
      return static_cast<std::uint8_t>(std::clamp(key - (((product >> 8) + product) >> 8), 0, 255));
    };
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint8_t* at = pixels + 4 * i;
      red[i] = convert(at[0], at[3]);
      green[i] = convert(at[1], at[3]);
      blue[i] = convert(at[2], at[3]);
    }
  }
  return image;
}

Tensor decode_with_stb(const Source& source, std::string_view bytes, std::int64_t width, std::int64_t height) {
  StbPicture picture;
  const std::size_t budget =
      static_cast<std::size_t>(width * height) * kStbBytesPerPixel + 4 * bytes.size() + kStbBytesBeside;
  const std::string why = stb_decode(bytes, budget, picture);
  if (!why.empty()) source.fail(ImageFault::corrupt, why);
  if (picture.width != width || picture.height != height) source.fail(ImageFault::corrupt, "two headers that differ");
  return planes(picture.pixels.get(), picture.width, picture.height, 3);
}

// --- JPEG ----------------------------------------------------------------------------------------------------------

const char* jpeg_process(int frame) {
  switch (frame) {
    case 0xC3:
    case 0xC7:
    case 0xCB:
    case 0xCF:
      return "lossless JPEG";
    case 0xC5:
    case 0xC6:
    case 0xCD:
    case 0xCE:
      return "hierarchical JPEG";
    default:
      return nullptr;
  }
}

Tensor decode_jpeg(const Source& source, const DecodeOptions& options) {
  const JpegHeader header = read_jpeg_header(source.bytes);
  if (!header.has_frame || (!header.has_scan && !header.has_end)) {
    source.fail(header.has_end ? ImageFault::corrupt : ImageFault::truncated, "the header has no picture behind it");
  }
  if (const char* process = jpeg_process(header.frame)) {
    source.fail(ImageFault::unsupported, format("{}; convert it to a baseline JPEG or a PNG", process));
  }
  if (header.precision == 12 || header.precision == 16) {
    source.fail(ImageFault::unsupported, format("JPEG with {} bits a sample; convert it to 8 bits", header.precision));
  }
  if (header.precision != 8) source.fail(ImageFault::corrupt, format("{} bits a sample", header.precision));
  check_size(source, header.width, header.height);
  if (!header.has_scan) source.fail(ImageFault::corrupt, "no scan: the file has no pixels");
  const std::int64_t pixels = header.width * header.height;
  if (pixels > kHarmlessPixels && pixels / kJpegPixelsPerByte > static_cast<std::int64_t>(source.bytes.size())) {
    source.fail(ImageFault::truncated, format("{} x {} pixels do not fit into its bytes", header.width, header.height));
  }
  // Pillow's rule. Decoders fill what is missing with grey, and of a progressive file's missing scans they say nothing.
  if (!header.has_end) source.fail(ImageFault::truncated, "its end mark is missing, and so may be pixels");
  Tensor image;
  if (has_turbo() && options.jpeg == JpegDecoder::best) {
    thread_local TurboPicture picture;  // its memory serves the next small picture too
    const std::string why = turbo_decode(source.bytes, std::max(pixels, kHarmlessPixels), picture);
    if (why.empty()) image = planes(picture.pixels.data(), picture.width, picture.height, picture.channels);
    constexpr std::size_t kKept = std::size_t{1} << 20;
    if (picture.pixels.size() > kKept) picture = TurboPicture();
    if (!why.empty()) source.fail(ImageFault::corrupt, why);
  } else {
    // libjpeg tells, stb_image would make a grey picture of it.
    if (!header.has_huffman || !header.has_quantization)
      source.fail(ImageFault::corrupt, "no tables to decode it with");
    image = decode_with_stb(source, source.bytes, header.width, header.height);
  }
  return options.exif ? orient(image, header.orientation) : image;
}

// --- PNG -----------------------------------------------------------------------------------------------------------

Tensor decode_png(const Source& source, const DecodeOptions& options) {
  constexpr std::size_t kSignature = 8, kFrame = 12;  // of a chunk: length, name, checksum
  static const std::string kEnd("\0\0\0\0IEND\xAE\x42\x60\x82", 12);
  const std::string_view bytes = source.bytes;
  std::int64_t width = 0, height = 0, row_bits = 0, data = 0;
  int orientation = 1;
  bool ended = false;
  std::size_t at = kSignature, whole = kSignature;  // where the last whole chunk ends
  while (!ended && at + kFrame <= bytes.size()) {
    const std::size_t length = source.number(at, 4, true);
    const std::string_view name = bytes.substr(at + 4, 4);
    if (length > bytes.size() - at - kFrame) {
      if (name == "IDAT") source.fail(ImageFault::truncated, "the picture ends before its last row");
      break;
    }
    const std::string_view chunk = bytes.substr(at + 8, length);
    const auto sound = [&] {
      return crc32(bytes.substr(at + 4, length + 4)) == source.number(at + 8 + length, 4, true);
    };
    if ((name == "IHDR" || name == "PLTE") && !sound())
      source.fail(ImageFault::corrupt, format("wrong checksum of {}", name));
    if (name == "IHDR" && length >= 13) {
      width = source.number(at + 8, 4, true);
      height = source.number(at + 12, 4, true);
      const int depth = static_cast<std::uint8_t>(chunk[8]), kind = static_cast<std::uint8_t>(chunk[9]);
      const int channels = kind == 2 ? 3 : kind == 4 ? 2 : kind == 6 ? 4 : 1;
      check_size(source, width, height);
      row_bits = width * depth * channels;
    }
    if (name == "IDAT") data += static_cast<std::int64_t>(length);
    if (name == "eXIf" && sound()) orientation = exif_orientation(chunk);
    ended = name == "IEND";
    at += kFrame + length;
    whole = at;
  }
  if (width == 0)
    source.fail(ended || whole > kSignature ? ImageFault::corrupt : ImageFault::truncated, "no header (IHDR)");
  if (data == 0) source.fail(ended ? ImageFault::corrupt : ImageFault::truncated, "no data (IDAT)");
  if ((row_bits / 8 + 1) * height > kDeflateRatio * (data + 64)) {
    source.fail(ImageFault::truncated,
                format("{} x {} pixels do not fit into {} compressed bytes", width, height, data));
  }
  std::string completed;
  if (!ended) completed = std::string(bytes.substr(0, whole)) + kEnd;
  const Tensor image = decode_with_stb(source, ended ? bytes : std::string_view(completed), width, height);
  return options.exif ? orient(image, orientation) : image;
}

// --- BMP, PNM ------------------------------------------------------------------------------------------------------

Tensor decode_bmp(const Source& source) {
  constexpr std::size_t kOldHeader = 12, kOldEnd = 26, kHeaderEnd = 34;
  const std::size_t bytes = source.bytes.size();
  const bool old = bytes >= kOldEnd && source.number(14, 4, false) == kOldHeader;
  if (bytes < (old ? kOldEnd : kHeaderEnd)) source.fail(ImageFault::truncated, "the header is cut short");
  const std::int64_t begin = source.number(10, 4, false);
  const std::int64_t width = old ? source.number(18, 2, false) : static_cast<std::int32_t>(source.number(18, 4, false));
  std::int64_t height = old ? source.number(20, 2, false) : static_cast<std::int32_t>(source.number(22, 4, false));
  const std::int64_t bits = source.number(old ? 24 : 28, 2, false);
  if (height < 0) height = -height;  // stored from the top
  check_size(source, width, height);
  const std::uint32_t compression = old ? 0 : source.number(30, 4, false);  // 0 none, 3 with masks
  if (compression != 0 && compression != 3)
    source.fail(ImageFault::unsupported, format("BMP with compression {}; convert it to a PNG", compression));
  if (begin + (width * bits + 31) / 32 * 4 * height > static_cast<std::int64_t>(bytes)) {
    source.fail(ImageFault::truncated,
                format("{} x {} pixels of {} bits do not fit into its bytes", width, height, bits));
  }
  return decode_with_stb(source, source.bytes, width, height);
}

Tensor decode_pnm(const Source& source) {
  std::int64_t width = 0, height = 0;
  if (!stb_size(source.bytes, width, height)) source.fail(ImageFault::corrupt, "the header can't be read");
  check_size(source, width, height);
  if (width * height * (source.begins_with("P6") ? 3 : 1) > static_cast<std::int64_t>(source.bytes.size())) {
    source.fail(ImageFault::truncated, format("{} x {} pixels do not fit into its bytes", width, height));
  }
  return decode_with_stb(source, source.bytes, width, height);
}

// The name of a format that is known and not decoded; null where the bytes are none.
const char* foreign_format(const Source& source) {
  if (source.begins_with("GIF8")) return "GIF";
  if (source.begins_with("RIFF") && source.begins_with("WEBP", 8)) return "WebP";
  if (source.begins_with(std::string_view("II*\0", 4)) || source.begins_with(std::string_view("MM\0*", 4)))
    return "TIFF";
  if (source.begins_with("ftyphei", 4) || source.begins_with("ftypmif", 4)) return "HEIC";
  if (source.begins_with("ftypavi", 4)) return "AVIF";
  if (source.begins_with("jP  ", 4) || source.begins_with("\xFF\x4F\xFF\x51")) return "JPEG 2000";
  if (source.begins_with("8BPS")) return "Photoshop";
  for (const char* magic : {"P1", "P2", "P3", "P4", "P7"}) {
    if (source.begins_with(magic) && source.bytes.size() > 2 && (source.bytes[2] == '\n' || source.bytes[2] == ' '))
      return "PNM that is neither binary grey nor RGB";
  }
  return nullptr;
}

}  // namespace

const char* to_string(ImageFault fault) {
  switch (fault) {
    case ImageFault::unreadable:
      return "unreadable";
    case ImageFault::empty:
      return "empty";
    case ImageFault::unsupported:
      return "unsupported";
    case ImageFault::truncated:
      return "truncated";
    case ImageFault::corrupt:
      return "corrupt";
    case ImageFault::too_large:
      return "too large";
  }
  return "?";
}

const char* jpeg_decoder_name() { return has_turbo() ? "libjpeg-turbo" : "stb_image"; }

Tensor decode_image(std::string_view bytes, const std::string& name, const DecodeOptions& options) {
  const Source source{bytes, name};
  if (bytes.empty()) source.fail(ImageFault::empty, "the file has no bytes");
  Tensor image;
  if (source.begins_with("\xFF\xD8")) {
    image = decode_jpeg(source, options);
  } else if (source.begins_with("\x89PNG\r\n\x1A\n")) {
    image = decode_png(source, options);
  } else if (source.begins_with("BM")) {
    image = decode_bmp(source);
  } else if (source.begins_with("P5") || source.begins_with("P6")) {
    image = decode_pnm(source);
  } else if (const char* format_name = foreign_format(source)) {
    source.fail(ImageFault::unsupported, format("{}; convert it to JPEG or PNG", format_name));
  } else {
    source.fail(ImageFault::corrupt, "not a JPEG, PNG, BMP or PNM file, whatever its name says");
  }
  return options.grey ? to_grey(image) : image;
}

std::string read_image_bytes(const std::string& path) {
  const auto fail = [&](ImageFault fault, const std::string& why) {
    throw ImageError(fault, format("[image] {}: {}: {}", path, to_string(fault), why));
  };
  const auto reason = [] { return std::system_category().message(errno); };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) fail(ImageFault::unreadable, reason());
  struct Closer {
    int file;
    ~Closer() { close(file); }
  } closer{file};
  struct stat status = {};
  if (fstat(file, &status) != 0) fail(ImageFault::unreadable, reason());
  if (!S_ISREG(status.st_mode)) fail(ImageFault::unreadable, "not a file");
  constexpr off_t kLimit = off_t{1} << 30;
  if (status.st_size > kLimit)
    fail(ImageFault::too_large, format("{} bytes; expected at most {}", status.st_size, kLimit));
  std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t got = read(file, bytes.data() + at, bytes.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(ImageFault::unreadable, reason());
    if (got == 0) break;
    at += static_cast<std::size_t>(got);
  }
  bytes.resize(at);
  if (bytes.empty()) fail(ImageFault::empty, "the file has no bytes");
  return bytes;
}

Tensor read_image(const std::string& path, const DecodeOptions& options) {
  return decode_image(read_image_bytes(path), path, options);
}

Tensor orient(const Tensor& image, int orientation) {
  if (orientation <= 1 || orientation > 8) return image;
  const Tensor from = image.contiguous();
  const std::int64_t channels = from.size(0), height = from.size(1), width = from.size(2);
  const bool turned = orientation >= 5;  // rows become columns
  Tensor to = Tensor::empty(turned ? Shape{channels, width, height} : from.shape(), bytes_option());
  // The result's pixel (y, x) is the source's; 2, 3, 4 mirror, turn by half, mirror upside down; 5 to 8 transpose
  // first.
  const bool flip_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool flip_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const std::uint8_t* source = from.data<std::uint8_t>();
  std::uint8_t* out = to.data<std::uint8_t>();
  for (std::int64_t c = 0; c < channels; ++c, source += height * width) {
    for (std::int64_t y = 0; y < to.size(1); ++y) {
      for (std::int64_t x = 0; x < to.size(2); ++x) {
        std::int64_t row = turned ? x : y, column = turned ? y : x;
        if (flip_y) row = height - 1 - row;
        if (flip_x) column = width - 1 - column;
        *out++ = source[row * width + column];
      }
    }
  }
  return to;
}

}  // namespace polygrad

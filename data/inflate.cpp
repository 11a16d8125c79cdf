// Inflate is stb_image's zlib decoder, compiled static: no symbol of it leaves this file. The gzip frame around the
// deflate stream (RFC 1952) is ours.
#include "data/inflate.h"

#include <array>
#include <cstring>
#include <memory>

#include "engine/error.h"
#include "engine/format.h"

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#define STBI_SUPPORT_ZLIB
#define STBI_NO_STDIO
#define STBI_NO_LINEAR
#define STBI_NO_HDR
#define STBI_NO_JPEG
#define STBI_NO_PNG
#define STBI_NO_BMP
#define STBI_NO_PSD
#define STBI_NO_TGA
#define STBI_NO_GIF
#define STBI_NO_PIC
#define STBI_NO_PNM
#include <stb_image.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

namespace polygrad {

namespace {

// Deflate's longest match is 258 bytes in 2 bits: no stream grows by more than this factor (zlib's documentation).
constexpr std::uint64_t kMaxRatio = 1032;
constexpr std::size_t kHeaderBytes = 10, kTrailerBytes = 8;

std::uint8_t byte_at(std::string_view bytes, std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); }

std::uint32_t little_endian32(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= static_cast<std::uint32_t>(byte_at(bytes, at + i)) << (8 * i);
  return value;
}

[[noreturn]] void fail(const std::string& name, const std::string& what) {
  throw DataError(format("[gunzip] {}: {}", name, what));
}

// Where the deflate stream begins: after the fixed header and its optional fields.
std::size_t skip_header(std::string_view bytes, const std::string& name) {
  if (!is_gzip(bytes)) fail(name, "not a gzip file; expected it to begin with 1f 8b");
  if (bytes.size() < kHeaderBytes + kTrailerBytes) fail(name, "the gzip header is cut short");
  if (byte_at(bytes, 2) != 8) {
    fail(name, format("gzip compression method {}; expected 8 (deflate)", byte_at(bytes, 2)));
  }
  const std::uint8_t flags = byte_at(bytes, 3);
  constexpr std::uint8_t kHeaderCrc = 2, kExtra = 4, kFileName = 8, kComment = 16, kReserved = 0xE0;
  if (flags & kReserved) fail(name, "reserved flags are set in the gzip header");
  const std::size_t end = bytes.size() - kTrailerBytes;
  std::size_t at = kHeaderBytes;
  if (flags & kExtra) {
    if (at + 2 > end) fail(name, "the gzip header is cut short");
    at += 2 + byte_at(bytes, at) + 256u * byte_at(bytes, at + 1);
  }
  for (const std::uint8_t field : {kFileName, kComment}) {
    if (!(flags & field)) continue;
    while (at < end && bytes[at] != '\0') ++at;
    ++at;
  }
  if (flags & kHeaderCrc) at += 2;
  if (at > end) fail(name, "the gzip header is cut short");
  return at;
}

}  // namespace

bool is_gzip(std::string_view bytes) {
  return bytes.size() >= 2 && byte_at(bytes, 0) == 0x1F && byte_at(bytes, 1) == 0x8B;
}

std::uint32_t crc32(std::string_view bytes) {
  // Four bytes a step: table[k] holds the effect of a byte followed by k zero bytes.
  static constexpr auto kTables = [] {
    std::array<std::array<std::uint32_t, 256>, 4> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0xEDB88320u : 0u);
      table[0][i] = value;
    }
    for (std::uint32_t i = 0; i < 256; ++i) {
      for (std::size_t k = 1; k < 4; ++k) {
        table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 0xFF];
      }
    }
    return table;
  }();
  std::uint32_t crc = 0xFFFFFFFFu;
  std::size_t at = 0;
  for (; at + 4 <= bytes.size(); at += 4) {
    crc ^= little_endian32(bytes, at);
    crc =
        kTables[3][crc & 0xFF] ^ kTables[2][(crc >> 8) & 0xFF] ^ kTables[1][(crc >> 16) & 0xFF] ^ kTables[0][crc >> 24];
  }
  for (; at < bytes.size(); ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ byte_at(bytes, at)) & 0xFF];
  return ~crc;
}

std::vector<char> gunzip(std::string_view bytes, const std::string& name) {
  const std::size_t begin = skip_header(bytes, name);
  const std::size_t end = bytes.size() - kTrailerBytes;
  const std::uint32_t expected_crc = little_endian32(bytes, end);
  const std::uint64_t expected_size = little_endian32(bytes, end + 4);
  const std::string_view stream = bytes.substr(begin, end - begin);
  constexpr std::uint64_t kIntMax = 0x7FFFFFFF - kTrailerBytes;  // stb counts in int
  if (expected_size > kMaxRatio * stream.size()) {
    fail(name, format("the gzip trailer promises {} bytes, more than {} compressed ones can hold; damaged or cut short",
                      expected_size, stream.size()));
  }
  if (stream.size() > kIntMax || expected_size > kIntMax) {
    fail(name,
         format("{} bytes unpacked are more than the 2 GiB supported here; unpack it with gunzip", expected_size));
  }
  // stb needs a buffer of at least a byte, and reads ahead of the stream's last bits: so the trailer is passed along.
  std::vector<char> content(static_cast<std::size_t>(expected_size));
  char none = 0;
  const int got = stbi_zlib_decode_noheader_buffer(content.empty() ? &none : content.data(),
                                                   static_cast<int>(content.empty() ? 1 : content.size()),
                                                   stream.data(), static_cast<int>(stream.size() + kTrailerBytes));
  if (got < 0) fail(name, "the compressed stream is damaged or cut short");
  if (static_cast<std::uint64_t>(got) != expected_size) {
    fail(name, format("unpacks to {} bytes; the gzip trailer says {}; damaged, or more than one gzip member", got,
                      expected_size));
  }
  const std::uint32_t crc = crc32({content.data(), content.size()});
  if (crc != expected_crc) fail(name, format("CRC-32 is {:08x}; the gzip trailer says {:08x}", crc, expected_crc));
  return content;
}

}  // namespace polygrad

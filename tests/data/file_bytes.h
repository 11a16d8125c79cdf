// Builds IDX and gzip files byte by byte, independent of the readers under test.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace polygrad::testing {

inline std::string big_endian_bytes(std::uint64_t value, int count) {
  std::string bytes;
  for (int i = count - 1; i >= 0; --i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

inline std::string little_endian_bytes(std::uint64_t value, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

// 0 0 type dims, the sizes, the elements as they are.
inline std::string idx_bytes(int type, const std::vector<std::uint32_t>& sizes, const std::string& elements) {
  std::string bytes{'\0', '\0', static_cast<char>(type), static_cast<char>(sizes.size())};
  for (const std::uint32_t size : sizes) bytes += big_endian_bytes(size, 4);
  return bytes + elements;
}

inline std::uint32_t bitwise_crc32(const std::string& bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320u : 0u);
  }
  return ~crc;
}

// A gzip member with one stored block (up to 65,535 bytes) and, where given, optional header fields.
inline std::string gzip_bytes(const std::string& content, int flags = 0, const std::string& fields = "") {
  const std::string header{'\x1F', '\x8B', '\x08', static_cast<char>(flags), 0, 0, 0, 0, 0, '\xFF'};
  const std::string block = '\x01' + little_endian_bytes(content.size(), 2) + little_endian_bytes(~content.size(), 2);
  return header + fields + block + content + little_endian_bytes(bitwise_crc32(content), 4) +
         little_endian_bytes(content.size(), 4);
}

}  // namespace polygrad::testing

// Gzip: one member, checked to the last byte. Internal to data/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace polygrad {

// 0x1F 0x8B: gzip's first two bytes, whatever the file's name.
bool is_gzip(std::string_view bytes);

// The content of a gzip file with one member. `name` is for messages. Throws DataError where the header is not gzip's,
// the stream is cut or damaged, its length or CRC-32 is not the trailer's, or the trailer promises more than deflate
// can hold (nothing is allocated then).
std::vector<char> gunzip(std::string_view bytes, const std::string& name);

// CRC-32 (IEEE 802.3, as in gzip and PNG).
std::uint32_t crc32(std::string_view bytes);

}  // namespace polygrad

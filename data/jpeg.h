// JPEG: the marker structure (ours), and the pixels (libjpeg-turbo). Internal: not installed.
//
// Where this stands: below decode.h. The structure is read first: sizes are checked before memory is taken, and whether
// the file has its end mark tells a truncated one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace polygrad {

struct JpegHeader {
  bool has_frame = false, has_scan = false;
  bool has_huffman = false, has_quantization = false;  // tables, at least one of each
  bool has_end = false;                                // an EOI marker where one belongs
  int frame = 0;      // the SOF marker's low byte: 0xC0 baseline, 0xC2 progressive, 0xC3 lossless, ...
  int precision = 0;  // bits a sample
  std::int64_t width = 0, height = 0;
  int orientation = 1;  // EXIF's, 1 where there is none or the block is malformed
};

// Reads what it can; never throws, never reads outside `bytes`.
JpegHeader read_jpeg_header(std::string_view bytes);

// Orientation of an EXIF block (beginning with the TIFF header); 1 where it is missing, malformed or not 1 to 8.
int exif_orientation(std::string_view block);

struct TurboPicture {
  std::int64_t width = 0, height = 0;
  int channels = 0;                  // 1 grey, 3 RGB, 4 CMYK as stored
  std::vector<std::uint8_t> pixels;  // interleaved
};

bool has_turbo();
// Decodes with libjpeg-turbo. `max_pixels` bounds what is allocated. "" where it worked, also round damage that leaves
// every pixel decodable; else why not.
std::string turbo_decode(std::string_view bytes, std::int64_t max_pixels, TurboPicture& picture);

}  // namespace polygrad

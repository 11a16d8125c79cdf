// Decoding: the bytes of a picture file become a u8 tensor, or an ImageError that names file, size and reason.
//
// Where this stands: below image_files.h (data sets of files). JPEG goes to libjpeg-turbo where the build has it, PNG,
// BMP and binary PNM (and JPEG without turbo) to stb_image; the format is told by the first bytes, never by the name.
// Read next: decode.cpp (what is decided where), jpeg.h, stb_picture.h.
//
// Decided once, for training, evaluation and prediction alike:
//   grey, palette, 1 to 16 bits     become 8-bit RGB (of 16 bits the high byte)
//   alpha                           is dropped, not blended
//   CMYK, YCCK                      are converted as Pillow does: 255 - c and 255 - k, multiplied
//   EXIF's orientation              is applied only where asked for (data.exif); a malformed block is ignored
//   a JPEG without its end mark, a PNG whose data end early    is an error (truncated), as with Pillow
//   damage that leaves every pixel decodable (junk between markers, a wrong checksum of the data)    is a picture
//   GIF, WebP, TIFF, HEIC, AVIF, JPEG 2000, lossless and 12-bit JPEG, compressed BMP, PNM in text    are refused by
//   name a header that promises more than its bytes can hold, or more than kMaxPixels    is refused before memory is
//   taken
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/error.h"
#include "engine/tensor.h"

namespace polygrad {

enum class ImageFault : std::uint8_t { unreadable, empty, unsupported, truncated, corrupt, too_large };
const char* to_string(ImageFault fault);

// A picture that can't be used. The message has path, size in bytes and reason.
class ImageError : public DataError {
 public:
  ImageError(ImageFault fault, const std::string& message) : DataError(message), fault_(fault) {}
  ImageFault fault() const { return fault_; }

 private:
  ImageFault fault_;
};

// As many as Pillow opens; a photograph of today has a tenth of it.
constexpr std::int64_t kMaxPixels = 178'956'970;

enum class JpegDecoder : std::uint8_t { best, stb };  // best: libjpeg-turbo where the build has it

struct DecodeOptions {
  bool exif = false;  // turn the picture as its EXIF orientation says
  bool grey = false;  // one channel: Pillow's L
  JpegDecoder jpeg = JpegDecoder::best;
};

// (3, H, W) u8, or (1, H, W) where grey is asked for. `name` is for messages. Throws ImageError.
Tensor decode_image(std::string_view bytes, const std::string& name, const DecodeOptions& options = {});
// The same from a file. Throws ImageError, also where it can't be opened.
Tensor read_image(const std::string& path, const DecodeOptions& options = {});
// The file's bytes. Throws ImageError (unreadable, empty).
std::string read_image_bytes(const std::string& path);

// "libjpeg-turbo" or "stb_image".
const char* jpeg_decoder_name();

// What EXIF's orientation (1 to 8) does to an image (C, H, W): 1 nothing, 3 half a turn, 6 a quarter clockwise, ...
Tensor orient(const Tensor& image, int orientation);

}  // namespace polygrad

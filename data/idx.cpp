#include "data/idx.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "data/inflate.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"

namespace polygrad {

namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 36;

[[noreturn]] void fail(const std::string& name, const std::string& what) {
  throw DataError(format("[idx] {}: {}", name, what));
}

std::uint64_t big_endian(const char* bytes, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) value = (value << 8) | static_cast<unsigned char>(bytes[i]);
  return value;
}

struct Header {
  unsigned type = 0;
  std::size_t element_bytes = 0;
  Shape shape;
  std::size_t bytes = 0;  // of the header itself
};

std::size_t element_bytes(unsigned type) {
  switch (type) {
    case 0x08:
    case 0x09:
      return 1;
    case 0x0B:
      return 2;
    case 0x0C:
    case 0x0D:
      return 4;
    case 0x0E:
      return 8;
    default:
      return 0;
  }
}

// Reads the header and compares what it promises with the bytes that are there.
Header parse_header(std::string_view bytes, const std::string& name) {
  if (bytes.size() < 4) fail(name, format("{} bytes are too few for an IDX header", bytes.size()));
  const auto magic = static_cast<std::uint32_t>(big_endian(bytes.data(), 4));
  Header header;
  header.type = (magic >> 8) & 0xFF;
  header.element_bytes = element_bytes(header.type);
  const std::size_t dims = magic & 0xFF;
  if ((magic >> 16) != 0 || header.element_bytes == 0) {
    fail(name, format("not an IDX file: it begins with {:08x}; expected 0000TTDD with type TT 08, 09, 0b, 0c, 0d or 0e",
                      magic));
  }
  if (dims < 1 || dims > static_cast<std::size_t>(kMaxDims)) {
    fail(name, format("{} dimensions; expected 1 to {}", dims, kMaxDims));
  }
  header.bytes = 4 + 4 * dims;
  if (bytes.size() < header.bytes) {
    fail(name, format("cut short in its header: {} bytes of {}", bytes.size(), header.bytes));
  }
  std::uint64_t expected = header.element_bytes;
  std::int64_t without_zeros = 1;  // a size of 0 hides the others from the product, not from a tensor's strides
  bool overflow = false, beyond_tensors = false;
  for (std::size_t d = 0; d < dims; ++d) {
    const std::uint64_t size = big_endian(bytes.data() + 4 + 4 * d, 4);
    overflow = overflow || __builtin_mul_overflow(expected, size, &expected);
    const auto factor = static_cast<std::int64_t>(std::max<std::uint64_t>(size, 1));
    beyond_tensors = beyond_tensors || __builtin_mul_overflow(without_zeros, factor, &without_zeros);
    header.shape.push_back(static_cast<std::int64_t>(size));
  }
  const std::uint64_t there = bytes.size() - header.bytes;
  if (overflow || expected > there) {
    fail(name, format("cut short: the header says {} elements of {} bytes, the file has {} bytes of them",
                      to_string(header.shape), header.element_bytes, there));
  }
  if (beyond_tensors) {
    fail(name, format("the header says {} elements: no such array can be addressed", to_string(header.shape)));
  }
  if (expected < there) {
    fail(name, format("{} bytes too long: the header says {} elements of {} bytes", there - expected,
                      to_string(header.shape), header.element_bytes));
  }
  return header;
}

// Integers of 1, 2 or 4 bytes, sign-extended.
std::int32_t signed_integer(const char* bytes, std::size_t count) {
  const auto value = static_cast<std::uint32_t>(big_endian(bytes, count));
  const unsigned shift = static_cast<unsigned>(32 - 8 * count);
  return static_cast<std::int32_t>(value << shift) >> shift;
}

template <class T, class Bits>
T from_bits(Bits bits) {
  T value;
  static_assert(sizeof(T) == sizeof(Bits));
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace

Tensor parse_idx(std::string_view bytes, const std::string& name) {
  if (is_gzip(bytes)) {
    const std::vector<char> content = gunzip(bytes, name);
    const std::string_view unpacked(content.data(), content.size());
    if (is_gzip(unpacked)) fail(name, "gzipped twice");
    return parse_idx(unpacked, name);
  }
  const Header header = parse_header(bytes, name);
  const char* at = bytes.data() + header.bytes;
  const std::int64_t count = header.shape.numel();
  const std::size_t step = header.element_bytes;
  TensorOptions options;
  switch (header.type) {
    case 0x08: {
      options.dtype = DType::u8;
      Tensor array = Tensor::empty(header.shape, options);
      if (count > 0) std::memcpy(array.data<std::uint8_t>(), at, static_cast<std::size_t>(count));
      return array;
    }
    case 0x0D: {
      options.dtype = DType::f32;
      Tensor array = Tensor::empty(header.shape, options);
      float* to = array.data<float>();
      for (std::int64_t i = 0; i < count; ++i, at += step) {
        to[i] = from_bits<float>(static_cast<std::uint32_t>(big_endian(at, step)));
      }
      return array;
    }
    case 0x0E: {
      options.dtype = DType::f64;
      Tensor array = Tensor::empty(header.shape, options);
      double* to = array.data<double>();
      for (std::int64_t i = 0; i < count; ++i, at += step) to[i] = from_bits<double>(big_endian(at, step));
      return array;
    }
    default: {
      options.dtype = DType::i32;
      Tensor array = Tensor::empty(header.shape, options);
      std::int32_t* to = array.data<std::int32_t>();
      for (std::int64_t i = 0; i < count; ++i, at += step) to[i] = signed_integer(at, step);
      return array;
    }
  }
}

Tensor read_idx(const std::string& path) {
  std::string bytes;
  try {
    bytes = read_file(path, kMaxFileBytes);
  } catch (const IoError& error) {
    fail(path, error.what());
  }
  return parse_idx(bytes, path);
}

IdxDataset::IdxDataset(std::string name, const std::string& images_path, const std::string& labels_path,
                       std::vector<std::string> class_names)
    : name_(std::move(name)), images_path_(images_path), class_names_(std::move(class_names)) {
  images_ = read_idx(images_path);
  if (images_.dim() != 3 || images_.dtype() != DType::u8) {
    fail(images_path, format("{} {}; expected u8 images (count, height, width)", to_string(images_.dtype()),
                             to_string(images_.shape())));
  }
  const Tensor labels = read_idx(labels_path);
  if (labels.dim() != 1 || (labels.dtype() != DType::u8 && labels.dtype() != DType::i32)) {
    fail(labels_path,
         format("{} {}; expected a list of integer labels", to_string(labels.dtype()), to_string(labels.shape())));
  }
  if (labels.size(0) != images_.size(0)) {
    fail(labels_path, format("{} labels for the {} images of {}", labels.size(0), images_.size(0), images_path));
  }
  if (labels.size(0) == 0) fail(images_path, "holds no images");
  if (images_.size(1) == 0 || images_.size(2) == 0) {
    fail(images_path, format("images of {} x {} pixels", images_.size(1), images_.size(2)));
  }

  if (labels.dtype() == DType::u8) {
    const auto values = labels.to_vector<std::uint8_t>();
    labels_.assign(values.begin(), values.end());
  } else {
    const auto values = labels.to_vector<std::int32_t>();
    labels_.assign(values.begin(), values.end());
  }
  const std::int64_t largest = *std::max_element(labels_.begin(), labels_.end());
  if (class_names_.empty()) {
    constexpr std::int64_t kMaxClasses = 1 << 20;  // a label beyond it is a damaged file, not a class
    for (std::int64_t k = 0; k <= std::min(largest, kMaxClasses); ++k) class_names_.push_back(std::to_string(k));
  }
  for (std::size_t i = 0; i < labels_.size(); ++i) {
    if (labels_[i] < 0 || labels_[i] >= classes()) {
      fail(labels_path, format("label {} of sample {} is outside the {} classes", labels_[i], i, classes()));
    }
  }

  // Whole numbers, so the sums are exact and the same everywhere.
  const std::uint8_t* pixels = images_.data<std::uint8_t>();
  const auto count = static_cast<std::size_t>(images_.numel());
  std::array<std::uint64_t, 256> histogram{};
  for (std::size_t i = 0; i < count; ++i) ++histogram[pixels[i]];
  double sum = 0, squares = 0;
  for (std::size_t value = 0; value < histogram.size(); ++value) {
    const double times = static_cast<double>(histogram[value]), x = static_cast<double>(value);
    sum += times * x;
    squares += times * x * x;
  }
  const double n = static_cast<double>(count), average = sum / n;
  mean_ = average / 255;
  const double variance = squares / n - average * average;
  stddev_ = variance > 0 ? std::sqrt(variance) / 255 : 1;  // constant images stay as they are

  fingerprint_ = format("{} {}x1x{}x{} {} classes, labels {}, pixels {}", name_, size(), height(), width(), classes(),
                        hex(content_hash(labels_.data(), labels_.size() * sizeof(std::int64_t))),
                        hex(content_hash(pixels, count)));
}

void IdxDataset::check_index(std::int64_t index) const {
  if (index < 0 || index >= size()) {
    throw IndexError(format("[idx] index {} is outside the {} samples of {}", index, size(), images_path_));
  }
}

Sample IdxDataset::get(std::int64_t index, Generator& /*generator*/) const {
  check_index(index);
  TensorOptions options;
  options.dtype = DType::u8;
  Sample sample{Tensor::empty(Shape{1, height(), width()}, options), label(index)};
  const std::int64_t pixels = height() * width();
  std::memcpy(sample.image.data<std::uint8_t>(), images_.data<std::uint8_t>() + index * pixels,
              static_cast<std::size_t>(pixels));
  return sample;
}

std::int64_t IdxDataset::label(std::int64_t index) const {
  check_index(index);
  return labels_[static_cast<std::size_t>(index)];
}

std::string IdxDataset::describe(std::int64_t index) const { return format("{}[{}]", images_path_, index); }

std::string find_idx_file(const std::string& root, const std::string& stem, const std::string& hint) {
  for (const char* suffix : {"", ".gz"}) {
    const std::string path = root + "/" + stem + suffix;
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode)) return path;
  }
  throw DataError(
      format("[data] no file {}/{} (nor {}.gz); expected in {}: train-images-idx3-ubyte, train-labels-idx1-ubyte, "
             "t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte, each plain or with .gz; {}",
             root, stem, stem, root, hint));
}

}  // namespace polygrad

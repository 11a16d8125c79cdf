// Reading and writing safetensors files; see safetensors.h.
//
// Reading trusts nothing: the header's length is checked against the file's size before anything is read, the JSON is
// taken in by events (no tree is built, and nesting can't go deeper than the format's own), and every tensor's bytes
// are proved to lie inside the file, without overlap or gap, before one is copied. Checks and limits are those of the
// format's reference implementation. Read first: HeaderReader, then check_layout.
#include "engine/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>

#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"

namespace polygrad {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and data is copied as it lies");

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kDataAlignment = 64;
constexpr const char* kMetadataKey = "__metadata__";

// --- element types ---------------------------------------------------------------------------------------------------

struct StoredType {
  const char* name;
  std::uint64_t bytes;
};

constexpr StoredType kStoredTypes[] = {
    {"F64", 8},     {"F32", 4},     {"F16", 2},     {"BF16", 2},        {"I64", 8},         {"I32", 4},  {"I16", 2},
    {"I8", 1},      {"U64", 8},     {"U32", 4},     {"U16", 2},         {"U8", 1},          {"BOOL", 1}, {"C64", 8},
    {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1},
};

const StoredType* find_stored_type(std::string_view name) {
  for (const StoredType& type : kStoredTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

const char* stored_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::f64:
      return "F64";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::i64:
      return "I64";
    case DType::i32:
      return "I32";
    case DType::u8:
      return "U8";
    case DType::boolean:
      return "BOOL";
  }
  throw InternalError("[save_safetensors] unknown dtype");
}

// --- the header ------------------------------------------------------------------------------------------------------

struct HeaderEntry {
  std::string name;
  const StoredType* type = nullptr;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> offsets;  // begin and end of the data
  bool has_shape = false, has_offsets = false;
};

// For messages: a hostile name may be as long as the header.
std::string quote(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  const std::string_view shown = text.substr(0, kLongest);
  return format("'{}{}'", fmt::string_view(shown.data(), shown.size()), text.size() > kLongest ? "..." : "");
}

// Receives the events of nlohmann's parser. Each returns false, with error() set, at the first thing that does not
// belong there.
class HeaderReader {
 public:
  std::vector<HeaderEntry> entries;
  std::map<std::string, std::string> metadata;
  const std::string& error() const { return error_; }

  bool start_object(std::size_t) {
    switch (place_) {
      case Place::start:
        place_ = Place::root;
        return true;
      case Place::root:
        if (key_ == kMetadataKey) {
          place_ = Place::metadata;
          return true;
        }
        place_ = Place::tensor;
        entries.emplace_back().name = key_;
        return true;
      default:
        return unexpected("an object");
    }
  }
  bool end_object() {
    if (place_ == Place::tensor && !complete(entries.back())) return false;
    place_ = place_ == Place::root ? Place::end : Place::root;
    return true;
  }
  bool key(std::string& name) {
    key_ = name;
    if (place_ == Place::root)
      return names_.insert(name).second || fail(format("the name {} occurs twice", quote(name)));
    if (place_ == Place::metadata) {
      return metadata.emplace(name, "").second || fail(format("the metadata key {} occurs twice", quote(name)));
    }
    const HeaderEntry& entry = entries.back();
    bool seen = false;
    if (name == "dtype") {
      seen = entry.type != nullptr;
    } else if (name == "shape") {
      seen = entry.has_shape;
    } else if (name == "data_offsets") {
      seen = entry.has_offsets;
    } else {
      return fail(
          format("tensor {}: unknown key {}; expected dtype, shape and data_offsets", quote(entry.name), quote(name)));
    }
    return !seen || fail(format("tensor {}: the key {} occurs twice", quote(entry.name), quote(name)));
  }
  bool start_array(std::size_t) {
    if (place_ != Place::tensor || key_ == "dtype") return unexpected("an array");
    place_ = key_ == "shape" ? Place::shape : Place::offsets;
    return true;
  }
  bool end_array() {
    (place_ == Place::shape ? entries.back().has_shape : entries.back().has_offsets) = true;
    place_ = Place::tensor;
    return true;
  }
  bool string(std::string& value) {
    if (place_ == Place::metadata) {
      metadata[key_] = value;
      return true;
    }
    if (place_ != Place::tensor || key_ != "dtype") return unexpected("a string");
    entries.back().type = find_stored_type(value);
    return entries.back().type != nullptr ||
           fail(format("tensor {}: unknown dtype {}", quote(entries.back().name), quote(value)));
  }
  bool number_unsigned(std::uint64_t value) {
    if (place_ != Place::shape && place_ != Place::offsets) return unexpected("a number");
    HeaderEntry& entry = entries.back();
    std::vector<std::uint64_t>& numbers = place_ == Place::shape ? entry.shape : entry.offsets;
    const std::size_t most = place_ == Place::shape ? static_cast<std::size_t>(kMaxDims) : 2;
    if (numbers.size() == most) {
      return fail(format("tensor {}: {} has more than {} numbers", quote(entry.name), quote(key_), most));
    }
    numbers.push_back(value);
    return true;
  }
  bool number_integer(std::int64_t) { return unexpected("a negative number"); }
  bool number_float(double, const std::string&) { return unexpected("a number that is not a whole one below 2^64"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool null() {
    if (place_ == Place::root && key_ == kMetadataKey) return true;  // the reference takes it as "none"
    return unexpected("null");
  }
  bool binary(std::vector<std::uint8_t>&) { return unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const std::exception&) {
    return fail(format("not valid JSON at byte {}", position));
  }

 private:
  enum class Place { start, root, metadata, tensor, shape, offsets, end };

  bool fail(std::string text) {
    error_ = std::move(text);
    return false;
  }
  bool unexpected(const char* what) {
    switch (place_) {
      case Place::start:
        return fail(format("{} where the format has an object", what));
      case Place::root:
        return fail(format("{} as the value of {}", what, quote(key_)));
      case Place::metadata:
        return fail(format("{} as the metadata value of {}; expected a string", what, quote(key_)));
      default:
        return fail(format("tensor {}: {} in {}", quote(entries.back().name), what, quote(key_)));
    }
  }
  bool complete(const HeaderEntry& entry) {
    if (entry.type != nullptr && entry.has_shape && entry.offsets.size() == 2) return true;
    return fail(format("tensor {}: expected dtype, shape and two data_offsets", quote(entry.name)));
  }

  Place place_ = Place::start;
  std::string key_;
  std::set<std::string> names_;
  std::string error_;
};

// The position of the first byte that is not well-formed UTF-8 (overlong forms and surrogates included), or npos.
std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    std::size_t more = 0;
    unsigned char low = 0x80, high = 0xBF;  // bounds of the second byte
    if (lead < 0x80) {
      ++i;
      continue;
    }
    if (lead >= 0xC2 && lead <= 0xDF) {
      more = 1;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
      more = 2;
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
      more = 3;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    } else {
      return i;
    }
    for (std::size_t k = 1; k <= more; ++k) {
      if (i + k >= text.size()) return i;
      const auto byte = static_cast<unsigned char>(text[i + k]);
      if (byte < low || byte > high) return i;
      low = 0x80;
      high = 0xBF;
    }
    i += more + 1;
  }
  return std::string_view::npos;
}

// --- the open file ---------------------------------------------------------------------------------------------------

// A file mapped into memory for reading. Another process that replaces the file by a rename leaves the mapping whole.
class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    // O_NONBLOCK: a pipe must be refused, not waited for.
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) fail(path, errno);
    struct stat status = {};
    const int error = ::fstat(descriptor, &status) != 0 ? errno : 0;
    const bool regular = error == 0 && S_ISREG(status.st_mode);
    if (regular && status.st_size > 0) {
      size_ = static_cast<std::uint64_t>(status.st_size);
      address_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    }
    const int map_error = address_ == MAP_FAILED ? errno : 0;
    ::close(descriptor);
    if (error != 0 || map_error != 0) fail(path, error != 0 ? error : map_error);
    if (!regular) throw IoError(format("[safetensors] '{}' is not a regular file", path));
  }
  ~Mapping() {
    if (size_ > 0 && address_ != MAP_FAILED) ::munmap(address_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const char* data() const { return static_cast<const char*>(address_); }
  std::uint64_t size() const { return size_; }

 private:
  [[noreturn]] static void fail(const std::string& path, int error) {
    throw IoError(format("[safetensors] cannot open '{}': {}", path, std::generic_category().message(error)));
  }
  void* address_ = nullptr;
  std::uint64_t size_ = 0;
};

struct Location {
  const StoredType* type;
  std::uint64_t begin, bytes;  // within the file
};

}  // namespace

struct SafetensorsFile::State {
  explicit State(const std::string& file_path) : path(file_path), file(file_path) { read_header(); }

  std::string path;
  Mapping file;
  std::vector<SafetensorsEntry> entries;
  std::vector<Location> locations;  // of the entries
  std::map<std::string, std::size_t> index;
  std::map<std::string, std::string> metadata;

  std::size_t find(const std::string& name) const {
    const auto found = index.find(name);
    if (found == index.end()) throw IoError(format("[safetensors] '{}' holds no tensor named {}", path, quote(name)));
    return found->second;
  }

 private:
  [[noreturn]] void malformed(const std::string& what) const {
    throw IoError(format("[safetensors] '{}' is malformed: {}", path, what));
  }

  void read_header() {
    if (file.size() < kLengthBytes) {
      malformed(format("{} bytes are too few for the header's length; expected at least 8", file.size()));
    }
    std::uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof(length));
    if (length > kMaxHeaderBytes) {
      malformed(format("the header is too large: {} bytes; expected at most {}", length, kMaxHeaderBytes));
    }
    if (length > file.size() - kLengthBytes) {
      malformed(format("the header of {} bytes runs past the end of the file of {} bytes", length, file.size()));
    }
    const std::string_view text(file.data() + kLengthBytes, length);
    const std::size_t bad_byte = find_invalid_utf8(text);
    if (bad_byte != std::string_view::npos) malformed(format("the header is not UTF-8 at byte {}", bad_byte));
    HeaderReader reader;
    if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader)) malformed("header: " + reader.error());
    check_layout(reader.entries, kLengthBytes + length);
    metadata = std::move(reader.metadata);
  }

  // Proves that the tensors cover the data exactly once, and fills the tables.
  void check_layout(std::vector<HeaderEntry>& headers, std::uint64_t data_begin) {
    std::stable_sort(headers.begin(), headers.end(),
                     [](const HeaderEntry& a, const HeaderEntry& b) { return a.offsets < b.offsets; });
    std::uint64_t position = 0;
    for (HeaderEntry& header : headers) {
      const std::uint64_t begin = header.offsets[0], end = header.offsets[1];
      const std::string name = quote(header.name);
      if (begin != position) {
        malformed(format("tensor {}: the data {} at offset {}, but the tensors before it end at {}", name,
                         begin < position ? "overlaps: it starts" : "leaves a gap: it starts", begin, position));
      }
      if (end < begin) malformed(format("tensor {}: data_offsets [{}, {}] run backwards", name, begin, end));
      const std::uint64_t bytes = byte_count(header);
      if (bytes != end - begin) {
        malformed(
            format("tensor {}: its dtype and shape need {} bytes, its data_offsets span {}", name, bytes, end - begin));
      }
      position = end;
      Shape shape;
      for (const std::uint64_t size : header.shape) shape.push_back(static_cast<std::int64_t>(size));
      index.emplace(header.name, entries.size());
      locations.push_back({header.type, data_begin + begin, bytes});
      entries.push_back({std::move(header.name), header.type->name, shape});
    }
    const std::uint64_t present = file.size() - data_begin;
    if (position != present) {
      malformed(format("the tensors cover {} bytes of data, but the file holds {}", position, present));
    }
  }

  // A size of 0 counts as 1 in the overflow check, so that strides can be computed as well.
  std::uint64_t byte_count(const HeaderEntry& header) const {
    std::uint64_t extent = header.type->bytes;
    bool empty = false;
    for (const std::uint64_t size : header.shape) {
      if (size == 0) {
        empty = true;
      } else if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / extent) {
        malformed(format("tensor {}: the size of its shape overflows 64 bits", quote(header.name)));
      } else {
        extent *= size;
      }
    }
    return empty ? 0 : extent;
  }
};

SafetensorsFile::SafetensorsFile(const std::string& path) : state_(std::make_unique<State>(path)) {}
SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::string& SafetensorsFile::path() const { return state_->path; }
const std::vector<SafetensorsEntry>& SafetensorsFile::entries() const { return state_->entries; }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return state_->metadata; }
bool SafetensorsFile::contains(const std::string& name) const { return state_->index.count(name) != 0; }

// --- loading ---------------------------------------------------------------------------------------------------------

namespace {

Tensor load_same(const char* bytes, std::uint64_t count, const Shape& shape, DType dtype) {
  Tensor tensor = Tensor::empty(shape, {.dtype = dtype});
  if (count > 0) std::memcpy(tensor.ref().data, bytes, count);
  return tensor;
}

// The data may begin at any byte, so each element is copied out before it is looked at.
template <class Stored, class Wide>
Tensor load_wider(const char* bytes, const Shape& shape) {
  Tensor tensor = Tensor::empty(shape, {.dtype = dtype_of<Wide>::value});
  Wide* const values = tensor.data<Wide>();
  const std::int64_t count = shape.numel();
  for (std::int64_t i = 0; i < count; ++i) {
    Stored value;
    std::memcpy(&value, bytes + i * static_cast<std::int64_t>(sizeof(Stored)), sizeof(Stored));
    values[i] = value;
  }
  return tensor;
}

}  // namespace

Tensor SafetensorsFile::load(const std::string& name) const {
  const std::size_t i = state_->find(name);
  const Location& location = state_->locations[i];
  const Shape& shape = state_->entries[i].shape;
  const char* const bytes = state_->file.data() + location.begin;
  const std::string_view type = location.type->name;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u8}) {
    if (type == stored_name(dtype)) return load_same(bytes, location.bytes, shape, dtype);
  }
  if (type == "BOOL") {
    // Any other byte in a C++ bool would be undefined behaviour.
    const char* const end = bytes + location.bytes;
    const char* const bad = std::find_if(bytes, end, [](char byte) { return byte != 0 && byte != 1; });
    if (bad != end) {
      throw IoError(format("[safetensors] '{}' is malformed: tensor {}: element {} of a BOOL is {}; expected 0 or 1",
                           path(), quote(name), bad - bytes, static_cast<unsigned char>(*bad)));
    }
    return load_same(bytes, location.bytes, shape, DType::boolean);
  }
  if (type == "I8") return load_wider<std::int8_t, std::int32_t>(bytes, shape);
  if (type == "I16") return load_wider<std::int16_t, std::int32_t>(bytes, shape);
  if (type == "U16") return load_wider<std::uint16_t, std::int32_t>(bytes, shape);
  if (type == "U32") return load_wider<std::uint32_t, std::int64_t>(bytes, shape);
  throw IoError(
      format("[safetensors] '{}': tensor {} has dtype {}, which has no counterpart here; convert "
             "it to F32 first",
             path(), quote(name), location.type->name));
}

NamedTensors load_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  NamedTensors tensors;
  tensors.reserve(file.entries().size());
  for (const SafetensorsEntry& entry : file.entries()) tensors.emplace_back(entry.name, file.load(entry.name));
  return tensors;
}

// --- saving ----------------------------------------------------------------------------------------------------------

namespace {

std::uint64_t tensor_bytes(const Tensor& tensor) {
  return static_cast<std::uint64_t>(tensor.numel()) * dtype_size(tensor.dtype());
}

// The length field and the JSON, padded so that the data after it is aligned.
std::string build_header(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  std::set<std::string_view> names;
  std::uint64_t position = 0;
  for (const auto& [name, tensor] : tensors) {
    if (name == kMetadataKey) throw ValueError("[save_safetensors] '__metadata__' cannot be a tensor's name");
    if (!names.insert(name).second) throw ValueError(format("[save_safetensors] duplicate name {}", quote(name)));
    if (!tensor.defined()) throw ValueError(format("[save_safetensors] tensor {} is undefined", quote(name)));
    const std::uint64_t end = position + tensor_bytes(tensor);
    // Appended, not assigned by key: an ordered object searches all earlier keys for that.
    header.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(
        name, nlohmann::ordered_json{{"dtype", stored_name(tensor.dtype())},
                                     {"shape", tensor.shape().vec()},
                                     {"data_offsets", {position, end}}});
    position = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    throw ValueError("[save_safetensors] a name or a metadata text is not UTF-8");
  }
  const std::uint64_t unpadded = kLengthBytes + text.size();
  text.append((kDataAlignment - unpadded % kDataAlignment) % kDataAlignment, ' ');
  const std::uint64_t length = text.size();
  if (length > kMaxHeaderBytes) {
    throw ValueError(
        format("[save_safetensors] the header needs {} bytes; expected at most {}", length, kMaxHeaderBytes));
  }
  std::string prefix(kLengthBytes, '\0');
  std::memcpy(prefix.data(), &length, sizeof(length));
  return prefix + text;
}

}  // namespace

void save_safetensors(const std::string& path, const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata) {
  const std::string header = build_header(tensors, metadata);
  AtomicFile file(path);
  file.write(header.data(), header.size());
  for (const auto& [name, tensor] : tensors) {
    const Tensor data = tensor.detach().to(Device::cpu()).contiguous();
    file.write(data.ref().data, tensor_bytes(data));
  }
  file.commit();
}

}  // namespace polygrad

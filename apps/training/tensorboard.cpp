#include "apps/training/tensorboard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>

#include "apps/training/metrics_log.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"

namespace polygrad {

namespace fs = std::filesystem;

namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

constexpr const char* kFilePrefix = "events.out.tfevents.";
constexpr std::size_t kMaxFileBytes = std::size_t{1} << 32;

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// --- records -------------------------------------------------------------------------------------------------------

constexpr std::size_t kHeadBytes = 12, kTailBytes = 4;

std::uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

template <typename T>
std::string bytes_of(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

template <typename T>
T value_of(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

std::string record(std::string_view payload) {
  const std::string length = bytes_of(static_cast<std::uint64_t>(payload.size()));
  return length + bytes_of(masked_crc(length)) + std::string(payload) + bytes_of(masked_crc(payload));
}

// --- messages: what of Protocol Buffers an Event needs -------------------------------------------------------------

enum Wire : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
// Numbers of the fields of Event, of SessionLog, of Summary and of its Value.
enum EventField : std::uint32_t { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };
enum SessionField : std::uint32_t { kStatus = 1 };
enum SummaryField : std::uint32_t { kValue = 1 };
enum ValueField : std::uint32_t { kTag = 1, kSimpleValue = 2 };
constexpr std::uint64_t kSessionStart = 1;

std::string varint_bytes(std::uint64_t value) {
  std::string result;
  for (; value >= 128; value >>= 7) result += static_cast<char>(value | 128);
  return result + static_cast<char>(value);
}

std::string key(std::uint32_t field, Wire wire) { return varint_bytes(field << 3 | wire); }

std::string text_field(std::uint32_t field, std::string_view text) {
  return key(field, kBytes) + varint_bytes(text.size()) + std::string(text);
}

std::string event(std::int64_t step, const std::string& content) {
  return key(kWallTime, kFixed64) + bytes_of(wall_time()) + key(kStep, kVarint) +
         varint_bytes(static_cast<std::uint64_t>(step)) + content;
}

std::string scalar(const std::string& tag, double number) {
  const std::string value = text_field(kTag, tag) + key(kSimpleValue, kFixed32) + bytes_of(static_cast<float>(number));
  return text_field(kValue, value);
}

// Reads a message's fields one after the other; ends at what it does not understand.
class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : rest_(message) {}
  struct Field {
    std::uint32_t number = 0;
    std::uint64_t integer = 0;  // of a varint
    std::string_view bytes;     // of the others
  };
  std::optional<Field> next() {
    const std::optional<std::uint64_t> head = take_varint();
    if (!head) return std::nullopt;
    Field field;
    field.number = static_cast<std::uint32_t>(*head >> 3);
    std::uint64_t size = 0;
    switch (*head & 7) {
      case kVarint: {
        const std::optional<std::uint64_t> value = take_varint();
        if (!value) return std::nullopt;
        field.integer = *value;
        return field;
      }
      case kFixed64:
        size = 8;
        break;
      case kFixed32:
        size = 4;
        break;
      case kBytes: {
        const std::optional<std::uint64_t> value = take_varint();
        if (!value) return std::nullopt;
        size = *value;
        break;
      }
      default:
        return std::nullopt;
    }
    if (size > rest_.size()) return std::nullopt;
    field.bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return field;
  }

 private:
  std::optional<std::uint64_t> take_varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
    return std::nullopt;
  }
  std::string_view rest_;
};

// The field of that number, the first one where there are several; an empty one where there is none.
FieldReader::Field field_of(std::string_view message, std::uint32_t number) {
  FieldReader reader(message);
  while (const std::optional<FieldReader::Field> field = reader.next()) {
    if (field->number == number) return *field;
  }
  return {};
}

bool is_scalar(std::string_view event) { return !field_of(event, kSummary).bytes.empty(); }

// Of the row that an event was made of.
std::string row_event(std::string_view tag) {
  const std::string_view group = tag.substr(0, tag.find('/'));
  return group == "train" ? "train" : group == "val" ? "eval" : "norms";
}

// Whether a resume from `last_step` keeps that event: no number of a later step, nor of the test part.
bool is_kept(std::string_view event, std::int64_t last_step, const std::vector<std::string>& redone) {
  if (!is_scalar(event)) return true;
  const std::string_view tag = field_of(field_of(field_of(event, kSummary).bytes, kValue).bytes, kTag).bytes;
  const auto step = static_cast<std::int64_t>(field_of(event, kStep).integer);
  if (tag.starts_with("test") || step > last_step) return false;
  return step < last_step || std::find(redone.begin(), redone.end(), row_event(tag)) == redone.end();
}

// --- rows ----------------------------------------------------------------------------------------------------------

// The group of a row's tags; "" for one that is not shown.
std::string group_of(const MetricsRow& row) {
  if (row.event() == "train") return "train";
  const JsonValue* split = row.json().find("split");
  if (row.event() == "eval" && split != nullptr) {
    const JsonValue* weights = row.json().find("weights");
    return split->as_text() + (weights != nullptr ? "_" + weights->as_text() : "");
  }
  return "";
}

std::string summary_of(const MetricsRow& row) {
  const bool norms = row.event() == "norms";
  const std::string group = group_of(row);
  std::string values;
  if (!norms && group.empty()) return values;
  for (const auto& [name, value] : row.json().members()) {
    if (name == "step" || name == "epoch" || name == "layer" || name == "count") continue;
    if (!value.is_number() && !value.is_null()) continue;
    const std::string tag = norms ? format("{}/layer_{:02}", name, static_cast<std::int64_t>(row.number("layer")))
                                  : format("{}/{}", group, name);
    values += scalar(tag, value.as_double());
  }
  return values;
}

// Event files of `folder`, oldest first: their names begin with the time.
std::vector<fs::path> event_files(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().starts_with(kFilePrefix)) files.push_back(it->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Behind all others: TensorBoard reads a folder's files in the order of their names.
std::string new_name(const std::vector<fs::path>& others) {
  auto seconds = static_cast<std::int64_t>(wall_time());
  const std::size_t prefix = std::strlen(kFilePrefix);
  for (const fs::path& other : others) {
    const std::string name = other.filename().string();
    seconds = std::max(seconds, static_cast<std::int64_t>(std::strtoll(name.c_str() + prefix, nullptr, 10)) + 1);
  }
  return format("{}{:010}.polygrad", kFilePrefix, seconds);
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static const std::array<std::uint32_t, 256> table = [] {
    constexpr std::uint32_t kReversedPolynomial = 0x82f63b78;
    std::array<std::uint32_t, 256> result{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ ((value & 1) != 0 ? kReversedPolynomial : 0);
      result[i] = value;
    }
    return result;
  }();
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(c)) & 255];
  return ~crc;
}

std::vector<std::string> read_event_records(std::string_view file) {
  std::vector<std::string> records;
  while (file.size() >= kHeadBytes + kTailBytes) {
    const auto length = value_of<std::uint64_t>(file);
    if (value_of<std::uint32_t>(file.substr(8)) != masked_crc(file.substr(0, 8))) break;
    if (length > file.size() - kHeadBytes - kTailBytes) break;
    const std::string_view payload = file.substr(kHeadBytes, length);
    if (value_of<std::uint32_t>(file.substr(kHeadBytes + length)) != masked_crc(payload)) break;
    records.emplace_back(payload);
    file.remove_prefix(kHeadBytes + length + kTailBytes);
  }
  return records;
}

TensorBoardLog::TensorBoardLog(const std::string& run_folder, std::optional<std::int64_t> resumed_step,
                               const std::vector<std::string>& redone) {
  const std::string folder = run_folder + "/tensorboard";
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw IoError(format("[tensorboard] can't make the folder {}: {}", folder, error.message()));
  const std::vector<fs::path> earlier = event_files(folder);
  for (const fs::path& path : earlier) {
    if (!resumed_step) {
      fs::remove(path, error);
    } else {
      // Not removed and not written anew: a TensorBoard that looks on has it open, and goes on to the next file. Rows
      // come in the order of their steps, of a step those to be redone behind the others, and those of the test part
      // last: what is kept is the file's beginning.
      std::uint64_t size = 0;
      for (const std::string& payload : read_event_records(read_file(path.string(), kMaxFileBytes))) {
        if (!is_kept(payload, *resumed_step, redone)) break;
        size += kHeadBytes + payload.size() + kTailBytes;
        begins_ = begins_ && !is_scalar(payload);
      }
      fs::resize_file(path, size, error);
    }
    if (error) throw IoError(format("[tensorboard] can't clear {}: {}", path.string(), error.message()));
  }
  // The start tells a TensorBoard that looks on to forget the steps from there on.
  const std::string start = text_field(kSessionLog, key(kStatus, kVarint) + varint_bytes(kSessionStart));
  file_ = AppendFile(folder + "/" + new_name(earlier), record(event(0, text_field(kFileVersion, "brain.Event:2"))) +
                                                           record(event(resumed_step.value_or(-1) + 1, start)));
}

void TensorBoardLog::write(const MetricsRow& row) {
  const std::string summary = summary_of(row);
  if (!summary.empty()) file_.append(record(event(row.step(), text_field(kSummary, summary))));
}

}  // namespace polygrad

#include "data/text_pairs.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>

#include "data/line_reader.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"
#include "engine/generator.h"

namespace polygrad {

namespace {

constexpr std::int64_t kMaxBytes = 10000;  // of a document, before anything else: as the reference's loader
constexpr std::size_t kColumns = 5;

// 0 or 1, written as any number ("1", "1.0"); else -1.
int parse_label(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return -1;
  return value == 0 ? 0 : value == 1 ? 1 : -1;
}

void read_at(int descriptor, std::uint64_t offset, char* to, std::size_t bytes, const std::string& path) {
  while (bytes > 0) {
    const ssize_t got = pread(descriptor, to, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      throw DataError(format("[text_pairs] {} can't be read at byte {}: {}", path, offset,
                             got == 0 ? "the file has become shorter" : std::strerror(errno)));
    }
    to += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

}  // namespace

TextPairs::TextPairs(std::string path, std::int64_t max_length)
    : path_(std::move(path)), max_length_(std::min(max_length, kMaxBytes)) {
  LineReader lines(path_);
  std::string_view line;
  std::uint64_t hash = 0;
  while (lines.next(line)) {
    const std::vector<std::string_view> columns = split_tabs(line);
    if (columns.size() != kColumns) {
      throw DataError(format("[text_pairs] {}: {} columns; expected label, id1, id2, text1, text2 with tabs between",
                             lines.where(), columns.size()));
    }
    const int label = parse_label(columns[0]);
    if (label < 0) {
      throw DataError(format("[text_pairs] {}: label '{}'; expected 0 or 1", lines.where(), columns[0].substr(0, 40)));
    }
    rows_.push_back({.begin = lines.offset() + static_cast<std::uint64_t>(columns[3].data() - line.data()),
                     .first = static_cast<std::uint32_t>(columns[3].size()),
                     .second = static_cast<std::uint32_t>(columns[4].size()),
                     .label = static_cast<std::uint8_t>(label)});
    hash = content_hash(line.data(), line.size(), hash);
  }
  if (rows_.empty()) throw DataError(format("[text_pairs] {} has no rows", path_));
  fingerprint_ = format("text pairs: {} samples of at most {} bytes, content {}", size(), max_length_, hex(hash));
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) throw DataError(format("[text_pairs] {} can't be opened: {}", path_, std::strerror(errno)));
}

TextPairs::~TextPairs() {
  if (descriptor_ >= 0) close(descriptor_);
}

const TextPairs::Row& TextPairs::row(std::int64_t index) const {
  if (index < 0 || index >= size()) {
    throw IndexError(format("[text_pairs] index {} is outside the {} samples", index, size()));
  }
  return rows_[static_cast<std::size_t>(index)];
}

std::int64_t TextPairs::kept(std::uint32_t bytes) const { return std::min<std::int64_t>(bytes, max_length_); }

Sample TextPairs::get(std::int64_t index, Generator&) const {
  const Row& found = row(index);
  const std::int64_t lengths[] = {kept(found.first), kept(found.second)};
  const std::uint64_t begins[] = {found.begin, found.begin + found.first + 1};
  const std::int64_t longest = std::max(lengths[0], lengths[1]);
  TensorOptions options;
  options.dtype = DType::i64;
  Sample sample;
  sample.label = found.label;
  sample.tokens = Tensor::empty(Shape{2, longest}, options);
  std::vector<char> bytes(static_cast<std::size_t>(longest));
  for (int tower = 0; tower < 2; ++tower) {
    read_at(descriptor_, begins[tower], bytes.data(), static_cast<std::size_t>(lengths[tower]), path_);
    std::int64_t* ids = sample.tokens.data<std::int64_t>() + tower * longest;
    for (std::int64_t i = 0; i < longest; ++i) {
      ids[i] = i < lengths[tower] ? static_cast<std::uint8_t>(bytes[static_cast<std::size_t>(i)]) + 1 : kNoToken;
    }
  }
  return sample;
}

TokenCounts TextPairs::token_counts(std::int64_t index) const {
  const Row& found = row(index);
  const std::uint32_t longest = std::max(found.first, found.second);
  return {.length = longest, .kept = kept(longest), .empty = found.first == 0 || found.second == 0};
}

const std::vector<std::string>& TextPairs::class_names() const {
  static const std::vector<std::string> names = {"apart", "together"};
  return names;
}

std::string TextPairs::describe(std::int64_t index) const { return format("{}:{}", path_, index + 1); }

// --- made-up documents ----------------------------------------------------------------------------------------------

namespace {

constexpr std::uint64_t kPairPurpose = 0x7061697273, kTopicPurpose = 0x746F706963;
constexpr int kTopics = 40, kWordsOfTopic = 12;

std::string made_up_word(Generator& generator) {
  static constexpr std::string_view kConsonants = "bcdfghjklmnpqrstvwz", kVowels = "aeiou";
  std::string word;
  for (std::int64_t syllables = generator.integer(2, 5); syllables > 0; --syllables) {
    word += kConsonants[static_cast<std::size_t>(generator.integer(0, std::ssize(kConsonants)))];
    word += kVowels[static_cast<std::size_t>(generator.integer(0, std::ssize(kVowels)))];
  }
  return word;
}

// Half of the words are the topic's, the others anything.
std::string made_up_document(std::uint64_t seed, std::int64_t topic, Generator& generator) {
  std::vector<std::string> words;
  Generator vocabulary(derive_seed(seed, kTopicPurpose, static_cast<std::uint64_t>(topic)));
  for (int i = 0; i < kWordsOfTopic; ++i) words.push_back(made_up_word(vocabulary));
  std::string text;
  for (std::int64_t count = generator.integer(30, 120); count > 0; --count) {
    if (!text.empty()) text += ' ';
    text += generator.bernoulli(0.5) ? words[static_cast<std::size_t>(generator.integer(0, kWordsOfTopic))]
                                     : made_up_word(generator);
  }
  return text;
}

std::string made_up_pair(std::uint64_t seed, std::int64_t index) {
  Generator generator(derive_seed(seed, kPairPurpose, static_cast<std::uint64_t>(index)));
  const bool together = generator.bernoulli(0.5);
  const std::int64_t first = generator.integer(0, kTopics);
  const std::int64_t second = together ? first : (first + generator.integer(1, kTopics)) % kTopics;
  const std::string text1 = made_up_document(seed, first, generator);
  const std::string text2 = made_up_document(seed, second, generator);
  return format("{:.1f}\tD{:06}a\tD{:06}b\t{}\t{}\n", together ? 1.0 : 0.0, index, index, text1, text2);
}

}  // namespace

void write_synthetic_pairs(const std::string& folder, std::int64_t count, std::uint64_t seed) {
  constexpr std::int64_t kLeast = 10;
  if (count < kLeast) throw ValueError(format("[text_pairs] {} pairs; expected at least {}", count, kLeast));
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) throw IoError(format("[text_pairs] {} can't be made: {}", folder, failure.message()));
  const std::int64_t held_out = count / 10;
  const std::pair<const char*, std::int64_t> parts[] = {
      {"train", count - 2 * held_out}, {"eval", held_out}, {"test", held_out}};
  std::int64_t index = 0;
  for (const auto& [name, samples] : parts) {
    AtomicFile file(format("{}/new_aan_pairs.{}.tsv", folder, name));
    for (const std::int64_t end = index + samples; index < end; ++index) {
      const std::string line = made_up_pair(seed, index);
      file.write(line.data(), line.size());
    }
    file.commit();
  }
}

}  // namespace polygrad

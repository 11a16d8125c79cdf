#include "data/token_table.h"

#include <algorithm>
#include <limits>

#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

TokenTable::TokenTable(std::string name, std::vector<std::string> class_names, int first_id)
    : name_(std::move(name)), class_names_(std::move(class_names)), first_id_(first_id) {}

void TokenTable::add(std::string_view tokens, std::int64_t max_length, std::int64_t label, std::int64_t unknown) {
  if (tokens.size() > std::numeric_limits<std::uint32_t>::max()) {
    throw DataError(format("[data] {}: a sample of {} tokens; expected fewer than 2^32", name_, tokens.size()));
  }
  const auto kept = std::min(tokens.size(), static_cast<std::size_t>(std::max<std::int64_t>(max_length, 0)));
  rows_.push_back({.begin = bytes_.size(),
                   .kept = static_cast<std::uint32_t>(kept),
                   .length = static_cast<std::uint32_t>(tokens.size()),
                   .unknown = static_cast<std::uint32_t>(unknown),
                   .label = static_cast<std::int32_t>(label)});
  bytes_.insert(bytes_.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(kept));
}

void TokenTable::check_index(std::int64_t index) const {
  if (index < 0 || index >= size()) {
    throw IndexError(format("[data] {}: index {} is outside the {} samples", name_, index, size()));
  }
}

const TokenTable::Row& TokenTable::row(std::int64_t index) const {
  check_index(index);
  return rows_[static_cast<std::size_t>(index)];
}

Sample TokenTable::get(std::int64_t index, Generator&) const {
  const Row& found = row(index);
  TensorOptions options;
  options.dtype = DType::i64;
  Sample sample;
  sample.label = found.label;
  sample.tokens = Tensor::empty(Shape{1, static_cast<std::int64_t>(found.kept)}, options);
  const std::uint8_t* bytes = bytes_.data() + found.begin;
  std::transform(bytes, bytes + found.kept, sample.tokens.data<std::int64_t>(),
                 [this](std::uint8_t byte) { return static_cast<std::int64_t>(byte) + first_id_; });
  return sample;
}

TokenCounts TokenTable::token_counts(std::int64_t index) const {
  const Row& found = row(index);
  return {.length = found.length, .kept = found.kept, .unknown = found.unknown, .empty = found.length == 0};
}

std::string TokenTable::fingerprint() const {
  std::uint64_t hash = content_hash(bytes_.data(), bytes_.size());
  for (const Row& row : rows_) {
    const std::uint64_t facts[] = {row.begin, row.length, static_cast<std::uint64_t>(row.label)};
    hash = content_hash(facts, sizeof facts, hash);
  }
  return format("{}: {} samples, content {}", name_, size(), hex(hash));
}

std::string describe_tokens(const Dataset& dataset, const std::string& split) {
  const std::int64_t size = dataset.size();
  std::int64_t cut = 0, empty = 0, unknown = 0, shortest = std::numeric_limits<std::int64_t>::max(), longest = 0;
  double sum = 0;
  std::vector<std::int64_t> lengths;
  lengths.reserve(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) {
    const TokenCounts counts = dataset.token_counts(i);
    lengths.push_back(counts.length);
    cut += counts.kept < counts.length;
    empty += counts.empty;
    unknown += counts.unknown;
    shortest = std::min(shortest, counts.length);
    longest = std::max(longest, counts.length);
    sum += static_cast<double>(counts.length);
  }
  if (longest == 0) return "";
  const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
  std::nth_element(lengths.begin(), middle, lengths.end());
  std::string text = format("{:<6} {} samples; tokens: {} to {}, mean {:.0f}, median {}; cut: {} ({:.1f} %)", split,
                            size, shortest, longest, sum / static_cast<double>(size), *middle, cut,
                            100.0 * static_cast<double>(cut) / static_cast<double>(size));
  text += format("; unknown tokens: {}", unknown);
  if (empty > 0) text += format("; empty: {}", empty);
  text += "; classes:";
  const std::vector<std::int64_t> counts = class_counts(dataset);
  for (std::size_t c = 0; c < counts.size(); ++c) text += format(" {} {}", dataset.class_names()[c], counts[c]);
  const std::string fingerprint = dataset.fingerprint();
  return text + "; list " + hex(content_hash(fingerprint.data(), fingerprint.size()));
}

std::vector<std::int32_t> token_lengths(const Dataset& dataset) {
  std::vector<std::int32_t> lengths;
  lengths.reserve(static_cast<std::size_t>(dataset.size()));
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    lengths.push_back(static_cast<std::int32_t>(dataset.token_counts(i).kept));
  }
  return lengths;
}

}  // namespace polygrad

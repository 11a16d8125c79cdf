#include "data/dataset.h"

#include <cstring>

#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

Subset::Subset(std::shared_ptr<const Dataset> base, std::vector<std::int64_t> indices)
    : base_(std::move(base)), indices_(std::move(indices)) {
  if (!base_) throw ValueError("[subset] no data set given");
  for (const std::int64_t index : indices_) {
    if (index < 0 || index >= base_->size()) {
      throw IndexError(format("[subset] index {} is outside the data set's {} samples", index, base_->size()));
    }
  }
}

std::int64_t Subset::checked(std::int64_t index) const {
  if (index < 0 || index >= size()) {
    throw IndexError(format("[subset] index {} is outside the {} samples", index, size()));
  }
  return indices_[static_cast<std::size_t>(index)];
}

Sample Subset::get(std::int64_t index, Generator& generator) const { return base_->get(checked(index), generator); }

std::int64_t Subset::label(std::int64_t index) const { return base_->label(checked(index)); }

TokenCounts Subset::token_counts(std::int64_t index) const { return base_->token_counts(checked(index)); }

std::string Subset::describe(std::int64_t index) const { return base_->describe(checked(index)); }

std::string Subset::fingerprint() const {
  const std::uint64_t hash = content_hash(indices_.data(), indices_.size() * sizeof(std::int64_t));
  return format("{} samples (chosen {}) of {}", size(), hex(hash), base_->fingerprint());
}

std::vector<std::int64_t> class_counts(const Dataset& dataset) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(dataset.classes()), 0);
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    const std::int64_t label = dataset.label(i);
    if (label < 0 || label >= dataset.classes()) {
      throw DataError(
          format("[data] {}: label {} is outside the {} classes", dataset.describe(i), label, dataset.classes()));
    }
    ++counts[static_cast<std::size_t>(label)];
  }
  return counts;
}

namespace {

// The finaliser of splitmix64: each input bit reaches each output bit.
std::uint64_t mix_bits(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

std::uint64_t load_little_endian(const unsigned char* bytes, std::size_t count) {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < count; ++i) word |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
  return word;
}

}  // namespace

std::uint64_t content_hash(const void* data, std::size_t bytes, std::uint64_t start) {
  const auto* at = static_cast<const unsigned char*>(data);
  std::uint64_t hash = mix_bits(start ^ (bytes * 0x9E3779B97F4A7C15u));
  for (; bytes >= 8; at += 8, bytes -= 8) {
    hash = (hash ^ load_little_endian(at, 8)) * 0x9FB21C651E98DF25u;
    hash ^= hash >> 32;
  }
  if (bytes > 0) hash = (hash ^ load_little_endian(at, bytes)) * 0x9FB21C651E98DF25u;
  return mix_bits(hash);
}

std::string hex(std::uint64_t value) { return format("{:016x}", value); }

}  // namespace polygrad

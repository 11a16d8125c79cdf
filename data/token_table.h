// TokenTable: sequences of tokens with labels, held in memory as one byte a token. The base of the small LRA data sets.
//
// Where this stands: above dataset.h, below listops.h and imdb.h. A token's id is its byte plus
// `first_id`: texts have ids 1 ... 256 for the bytes 0 ... 255.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace polygrad {

class TokenTable : public Dataset {
 public:
  std::int64_t size() const override { return static_cast<std::int64_t>(rows_.size()); }
  Sample get(std::int64_t index, Generator& generator) const override;  // tokens (1, kept)
  std::int64_t label(std::int64_t index) const override { return row(index).label; }
  TokenCounts token_counts(std::int64_t index) const override;
  const std::vector<std::string>& class_names() const override { return class_names_; }
  std::string fingerprint() const override;

 protected:
  TokenTable(std::string name, std::vector<std::string> class_names, int first_id);
  // Appends a sample that keeps the first `max_length` of `tokens` (bytes; ids are first_id more).
  void add(std::string_view tokens, std::int64_t max_length, std::int64_t label, std::int64_t unknown = 0);
  void check_index(std::int64_t index) const;

 private:
  struct Row {
    std::uint64_t begin = 0;
    std::uint32_t kept = 0, length = 0, unknown = 0;
    std::int32_t label = 0;
  };
  const Row& row(std::int64_t index) const;

  std::string name_;  // for the fingerprint
  std::vector<std::string> class_names_;
  int first_id_;
  std::vector<std::uint8_t> bytes_;
  std::vector<Row> rows_;
};

// What a person wants to know of a split before training on it: samples, classes, lengths, how many are cut, unknown
// tokens, and a number that changes with the list of samples. "" for images.
std::string describe_tokens(const Dataset& dataset, const std::string& split);
// The kept length of every sample: for batches of similar lengths (SamplerOptions::lengths).
std::vector<std::int32_t> token_lengths(const Dataset& dataset);

}  // namespace polygrad

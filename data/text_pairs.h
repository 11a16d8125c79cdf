// TextPairs: pairs of documents as bytes, and whether they belong together: the long-range-arena task "retrieval"
// (AAN).
//
// Where this stands: beside token_table.h. The file is tab-separated without header and without quoting:
// label<TAB>id1<TAB>id2<TAB>text1<TAB>text2, label a number that is 0 or 1. It may be larger than the memory: one pass
// notes where the texts lie, and a sample is read from the file when it is asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace polygrad {

class TextPairs : public Dataset {
 public:
  // A text keeps its first min(10,000, max_length) bytes. Throws DataError naming file and line: not five columns, a
  // label other than 0 and 1, no rows; and where the file can't be read.
  TextPairs(std::string path, std::int64_t max_length);
  ~TextPairs() override;

  std::int64_t size() const override { return static_cast<std::int64_t>(rows_.size()); }
  // tokens (2, longer length): byte + 1. Throws DataError where the file has become shorter meanwhile.
  Sample get(std::int64_t index, Generator& generator) const override;
  std::int64_t label(std::int64_t index) const override { return row(index).label; }
  TokenCounts token_counts(std::int64_t index) const override;
  const std::vector<std::string>& class_names() const override;
  std::string describe(std::int64_t index) const override;  // "FILE:17"
  std::string fingerprint() const override { return fingerprint_; }

 private:
  struct Row {
    std::uint64_t begin = 0;              // of text1 in the file; text2 follows behind one tab
    std::uint32_t first = 0, second = 0;  // bytes
    std::uint8_t label = 0;
  };
  const Row& row(std::int64_t index) const;
  std::int64_t kept(std::uint32_t bytes) const;

  std::string path_;
  std::int64_t max_length_;
  int descriptor_ = -1;
  std::vector<Row> rows_;
  std::string fingerprint_;
};

// Writes new_aan_pairs.{train,eval,test}.tsv into `folder` (which is made): pairs of made-up documents, a share of 80,
// 10, 10 % of `count` (at least 10). Two documents belong together where they are about one topic, that is, use its
// words. For tests, and for a first look: it says nothing about real citations. The same files for the same seed.
// Throws ValueError, IoError.
void write_synthetic_pairs(const std::string& folder, std::int64_t count, std::uint64_t seed);

}  // namespace polygrad

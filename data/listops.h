// ListOps: nested lists of digits with MIN, MAX, MED (median) and SM (sum modulo 10), to be evaluated.
//
// Where this stands: above token_table.h. A file is tab-separated with a header, in either of the two layouts that are
// in use: "Source<TAB>Target" (Long Range Arena) and "Target<TAB>Source" (Nangia and Bowman, arXiv 1804.06028).
// The vocabulary is fixed, so a model reads the same ids whatever file it was trained on: 0 padding, digits 1 ... 10,
// [MIN 11, [MAX 12, [MED 13, [SM 14, ] 15, and 16 for any other word. Round brackets only group, and are dropped.
// Read next: listops_generator.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/token_table.h"

namespace polygrad {

inline constexpr int kListOpsMin = 11, kListOpsMax = 12, kListOpsMed = 13, kListOpsSum = 14, kListOpsEnd = 15,
                     kListOpsUnknown = 16;

// The words of ids 1 ... 15.
const std::vector<std::string>& listops_words();
// The ids of an expression, one byte each; *unknown counts the words that are none of those.
std::string listops_ids(std::string_view source, std::int64_t* unknown);

class ListOpsDataset : public TokenTable {
 public:
  // Throws DataError naming file and line: no header of either layout, not two columns, an empty expression, a target
  // that is not a digit, no rows.
  ListOpsDataset(std::string path, std::int64_t max_length);
  std::string describe(std::int64_t index) const override;  // "FILE:17"

 private:
  std::string path_;
};

}  // namespace polygrad

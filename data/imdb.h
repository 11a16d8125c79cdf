// ImdbDataset: film reviews (Maas et al., 2011) as bytes: token id = byte + 1, class 0 neg, 1 pos.
//
// Where this stands: above token_table.h. Layout: {train,test}/{pos,neg}/ID_RATING.txt; the bytes are read as they are,
// "<br />" included. The long-range-arena task "text".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/token_table.h"

namespace polygrad {

class ImdbDataset : public TokenTable {
 public:
  // `root` holds train/ and test/, or a folder aclImdb that does; `split` is "train" or "test". neg comes first, each
  // class in natural order of its file names (file_tree.h). An empty review is a sample without tokens. Files that do
  // not end in .txt are left out and counted in a log message. Throws DataError naming the folder or file: missing,
  // unreadable, a class without reviews.
  ImdbDataset(const std::string& root, const std::string& split, std::int64_t max_length);
  std::string describe(std::int64_t index) const override;  // the file's path

 private:
  std::vector<std::string> paths_;
};

}  // namespace polygrad

#include "data/imdb.h"

#include "data/file_tree.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"
#include "engine/log.h"

namespace polygrad {

namespace {

// The folder itself or the aclImdb in it, whichever has the split.
std::string find_split(const std::string& root, const std::string& split) {
  for (const std::string& base : {root, root + "/aclImdb"}) {
    if (is_folder(base + "/" + split)) return base + "/" + split;
  }
  throw DataError(
      format("[imdb] {} has no folder {} (nor aclImdb/{}); expected {{train,test}}/{{pos,neg}}/ID_RATING.txt as in the "
             "archive "
             "aclImdb_v1 (Large Movie Review Dataset)",
             root, split, split));
}

}  // namespace

ImdbDataset::ImdbDataset(const std::string& root, const std::string& split, std::int64_t max_length)
    : TokenTable("imdb " + split, {"neg", "pos"}, 1) {
  const std::string folder = find_split(root, split);
  TreeNotes notes;
  for (std::int64_t label = 0; label < classes(); ++label) {
    const std::string side = folder + "/" + class_names()[static_cast<std::size_t>(label)];
    const std::vector<std::string> files = find_files(side, ".txt", notes);
    for (const std::string& name : files) {
      const std::string path = side + "/" + name;
      try {
        add(read_file(path), max_length, label);
      } catch (const IoError& error) {
        throw DataError(format("[imdb] {}", error.what()));
      }
      paths_.push_back(path);
    }
    if (files.empty()) throw DataError(format("[imdb] {} holds no review; expected files ID_RATING.txt", side));
  }
  if (!notes.foreign.empty()) {
    log_message(LogLevel::warning,
                format("[imdb] {}: {} files that do not end in .txt, or folders, are left out, such as {}", folder,
                       notes.foreign.size(), notes.foreign.front()));
  }
}

std::string ImdbDataset::describe(std::int64_t index) const {
  check_index(index);
  return paths_[static_cast<std::size_t>(index)];
}

}  // namespace polygrad

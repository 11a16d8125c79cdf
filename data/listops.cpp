#include "data/listops.h"

#include "data/line_reader.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/log.h"

namespace polygrad {

namespace {

std::vector<std::string> digits() {
  std::vector<std::string> names;
  for (int digit = 0; digit < 10; ++digit) names.push_back(std::to_string(digit));
  return names;
}

int word_id(std::string_view word) {
  if (word.size() == 1) {
    if (word[0] >= '0' && word[0] <= '9') return word[0] - '0' + 1;
    return word[0] == ']' ? kListOpsEnd : kListOpsUnknown;
  }
  if (word == "[MIN") return kListOpsMin;
  if (word == "[MAX") return kListOpsMax;
  if (word == "[MED") return kListOpsMed;
  if (word == "[SM") return kListOpsSum;
  return kListOpsUnknown;
}

bool separates(char c) { return c == ' ' || c == '(' || c == ')'; }

// Whether each operator has its end, and each end its operator.
bool brackets_match(const std::string& ids) {
  std::int64_t open = 0;
  for (const char id : ids) {
    open += id == kListOpsEnd ? -1 : id >= kListOpsMin && id < kListOpsEnd ? 1 : 0;
    if (open < 0) return false;
  }
  return open == 0;
}

std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 40;
  return text.size() <= kMost ? std::string(text) : std::string(text.substr(0, kMost)) + "...";
}

}  // namespace

const std::vector<std::string>& listops_words() {
  static const std::vector<std::string> words = [] {
    std::vector<std::string> list = digits();
    for (const char* word : {"[MIN", "[MAX", "[MED", "[SM", "]"}) list.emplace_back(word);
    return list;
  }();
  return words;
}

std::string listops_ids(std::string_view source, std::int64_t* unknown) {
  std::string ids;
  for (std::size_t at = 0; at < source.size();) {
    if (separates(source[at])) {
      ++at;
      continue;
    }
    const std::size_t begin = at;
    while (at < source.size() && !separates(source[at])) ++at;
    const int id = word_id(source.substr(begin, at - begin));
    *unknown += id == kListOpsUnknown;
    ids.push_back(static_cast<char>(id));
  }
  return ids;
}

ListOpsDataset::ListOpsDataset(std::string path, std::int64_t max_length)
    : TokenTable("listops", digits(), 0), path_(std::move(path)) {
  LineReader lines(path_);
  std::string_view line;
  const bool any = lines.next(line);
  const bool source_first = any && line == "Source\tTarget";
  if (!source_first && !(any && line == "Target\tSource")) {
    throw DataError(format("[listops] {}:1: expected the header Source<TAB>Target or Target<TAB>Source, got '{}'",
                           path_, any ? shown(line) : ""));
  }
  std::int64_t unmatched = 0;
  std::string first_unmatched;
  while (lines.next(line)) {
    const std::vector<std::string_view> columns = split_tabs(line);
    if (columns.size() != 2) {
      throw DataError(format("[listops] {}: {} columns; expected 2, an expression and its value, between them a tab",
                             lines.where(), columns.size()));
    }
    const std::string_view source = columns[source_first ? 0 : 1], target = columns[source_first ? 1 : 0];
    if (target.size() != 1 || target[0] < '0' || target[0] > '9') {
      throw DataError(format("[listops] {}: target '{}'; expected a digit", lines.where(), shown(target)));
    }
    std::int64_t unknown = 0;
    const std::string ids = listops_ids(source, &unknown);
    if (ids.empty()) throw DataError(format("[listops] {}: the expression is empty", lines.where()));
    if (unknown == 0 && !brackets_match(ids) && unmatched++ == 0) first_unmatched = lines.where();
    add(ids, max_length, target[0] - '0', unknown);
  }
  if (size() == 0) throw DataError(format("[listops] {}: no rows below the header", path_));
  if (unmatched > 0) {  // taken as they are: perhaps cut off, perhaps somebody's own notation
    log_message(LogLevel::warning, format("[listops] {}: {} expressions whose brackets [ ] do not match, the first one",
                                          first_unmatched, unmatched));
  }
}

std::string ListOpsDataset::describe(std::int64_t index) const {
  constexpr std::int64_t kFirstLine = 2;  // below the header
  check_index(index);
  return format("{}:{}", path_, index + kFirstLine);
}

}  // namespace polygrad

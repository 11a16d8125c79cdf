#include "data/listops_generator.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <unordered_set>
#include <vector>

#include "data/dataset.h"
#include "data/listops.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"
#include "engine/parallel.h"

namespace polygrad {

namespace {

constexpr std::size_t kTooShort = 500, kTooLong = 2000;  // both lengths are refused
constexpr int kMaxDepth = 10;
constexpr std::int64_t kMinArguments = 2, kMaxArguments = 10;
constexpr float kOperatorShare = 0.25f;
constexpr std::uint64_t kTreePurpose = 0x74726565;

int median(std::vector<int>& values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

int apply(int operation, std::vector<int>& values) {
  if (operation == kListOpsMin) return *std::min_element(values.begin(), values.end());
  if (operation == kListOpsMax) return *std::max_element(values.begin(), values.end());
  if (operation == kListOpsMed) return median(values);
  int sum = 0;
  for (const int value : values) sum += value;
  return sum % 10;
}

// Draws a subtree into `tree`; false where the whole has become too long, which no later draw can mend.
bool draw(Generator& generator, int depth, ListOpsTree& tree) {
  const bool is_operator = depth < kMaxDepth && !(generator.uniform() > kOperatorShare);
  if (!is_operator) {
    tree.value = static_cast<int>(generator.integer(0, 10));
    tree.depth = std::max(tree.depth, depth);
    tree.ids.push_back(static_cast<char>(tree.value + 1));
    return tree.ids.size() < kTooLong;
  }
  const int operation = static_cast<int>(generator.integer(kListOpsMin, kListOpsEnd));
  tree.ids.push_back(static_cast<char>(operation));
  std::vector<int> values(static_cast<std::size_t>(generator.integer(kMinArguments, kMaxArguments + 1)));
  for (int& value : values) {
    if (!draw(generator, depth + 1, tree)) return false;
    value = tree.value;
  }
  tree.value = apply(operation, values);
  tree.ids.push_back(static_cast<char>(kListOpsEnd));
  return tree.ids.size() < kTooLong;
}

bool is_operation(char id) { return id >= kListOpsMin && id < kListOpsEnd; }

// A subtree's text, from `at` on, which moves behind it. `arguments` says how many each operator has.
void write_tree(std::string_view ids, const std::vector<int>& arguments, std::size_t& at, std::string& text) {
  const std::size_t begin = at++;
  const std::string& word = listops_words()[static_cast<std::size_t>(ids[begin]) - 1];
  if (!is_operation(ids[begin])) {
    text += word;
    return;
  }
  // One pair for each argument, and one for the end.
  for (int i = 0; i <= arguments[begin]; ++i) text += "( ";
  text += word;
  for (int i = 0; i < arguments[begin]; ++i) {
    text += ' ';
    write_tree(ids, arguments, at, text);
    text += " )";
  }
  text += " ] )";
  ++at;
}

// How many arguments each operator of the expression has, by its position. Throws where the brackets do not match.
std::vector<int> count_arguments(std::string_view ids) {
  std::vector<int> arguments(ids.size(), 0);
  std::vector<std::size_t> open;
  bool whole = !ids.empty(), closed = false;
  for (std::size_t i = 0; i < ids.size() && whole; ++i) {
    whole = !closed && ids[i] > 0 && ids[i] <= kListOpsEnd;
    if (!whole) break;
    if (ids[i] == kListOpsEnd) {
      whole = !open.empty();
      if (whole) open.pop_back();
    } else {
      if (!open.empty()) ++arguments[open.back()];
      if (is_operation(ids[i])) open.push_back(i);
    }
    closed = open.empty();
  }
  if (!whole || !closed) throw ValueError("[listops] the tokens are not one whole expression");
  return arguments;
}

struct Part {
  std::unique_ptr<AtomicFile> file;
  std::int64_t left = 0;
};

std::vector<Part> open_parts(const std::string& folder, std::int64_t count) {
  const std::int64_t held_out = count / 50;
  std::vector<Part> parts;
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"train", count - 2 * held_out}, {"val", held_out}, {"test", held_out}};
  for (const auto& [name, size] : sizes) {
    parts.push_back({std::make_unique<AtomicFile>(format("{}/basic_{}.tsv", folder, name)), size});
    constexpr std::string_view kHeader = "Source\tTarget\n";
    parts.back().file->write(kHeader.data(), kHeader.size());
  }
  return parts;
}

}  // namespace

std::optional<ListOpsTree> draw_listops_tree(Generator& generator) {
  ListOpsTree tree;
  if (!draw(generator, 1, tree) || tree.ids.size() <= kTooShort) return std::nullopt;
  return tree;
}

std::string listops_text(std::string_view ids) {
  const std::vector<int> arguments = count_arguments(ids);
  std::string text;
  std::size_t at = 0;
  write_tree(ids, arguments, at, text);
  return text;
}

void write_listops(const std::string& folder, std::int64_t count, std::uint64_t seed,
                   const std::function<void(std::int64_t)>& progress) {
  constexpr std::int64_t kLeast = 50;  // one sample of val, one of test
  if (count < kLeast) throw ValueError(format("[listops] {} trees; expected at least {}", count, kLeast));
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) throw IoError(format("[listops] {} can't be made: {}", folder, failure.message()));
  std::vector<Part> parts = open_parts(folder, count);

  // A round of candidates at a time, drawn in blocks by all threads; kept in the order of their numbers.
  constexpr std::int64_t kBlock = 128, kBlocks = 128;
  std::unordered_set<std::uint64_t> seen;
  std::size_t part = 0;
  std::int64_t done = 0;
  for (std::int64_t first = 0; part < parts.size(); first += kBlock * kBlocks) {
    struct Line {
      std::uint64_t hash;
      std::string text;
    };
    std::vector<std::vector<Line>> found(kBlocks);
    parallel_for(0, kBlock * kBlocks, kBlock, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        Generator generator(derive_seed(seed, kTreePurpose, static_cast<std::uint64_t>(first + i)));
        const std::optional<ListOpsTree> tree = draw_listops_tree(generator);
        if (!tree) continue;
        found[static_cast<std::size_t>(begin / kBlock)].push_back(
            {content_hash(tree->ids.data(), tree->ids.size()),
             format("{}\t{}\n", listops_text(tree->ids), tree->value)});
      }
    });
    for (const std::vector<Line>& lines : found) {
      for (const Line& line : lines) {
        if (part == parts.size() || !seen.insert(line.hash).second) continue;
        parts[part].file->write(line.text.data(), line.text.size());
        ++done;
        if (--parts[part].left == 0) ++part;
      }
    }
    if (progress) progress(done);
  }
  for (Part& finished : parts) finished.file->commit();
}

}  // namespace polygrad

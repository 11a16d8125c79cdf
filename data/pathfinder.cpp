#include "data/pathfinder.h"

#include <algorithm>
#include <filesystem>

#include "data/decode.h"
#include "data/file_tree.h"
#include "data/grey_pixels.h"
#include "data/line_reader.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/log.h"

namespace polygrad {

namespace {

namespace fs = std::filesystem;

constexpr int kDepth = 3;  // how far below the root a level's folder is looked for

bool is_level(const std::string& at, const std::string& wanted) {
  return is_folder(at + "/metadata") && fs::path(at).filename() == wanted;
}

// Looks into a level's folder too: archives hold a second copy there.
void search(const std::string& at, const std::string& wanted, int depth, std::vector<std::string>& found) {
  if (is_level(at, wanted)) found.push_back(at);
  if (depth == 0) return;
  TreeNotes unused;
  for (const std::string& name : find_folders(at, unused)) {
    if (name != "imgs" && name != "metadata") search(at + "/" + name, wanted, depth - 1, found);
  }
}

std::string find_level(const std::string& root, const std::string& level) {
  const std::string wanted = pathfinder_folder(level);
  std::vector<std::string> found;
  std::string at = fs::absolute(root).lexically_normal().string();
  while (at.size() > 1 && at.ends_with('/')) at.pop_back();
  if (is_level(at, wanted)) return at;  // named by the user, whatever it holds
  if (is_folder(at)) search(at, wanted, kDepth, found);
  if (found.empty()) {
    throw DataError(
        format("[pathfinder] {} has no folder {} with imgs and metadata (data.level={}); expected the layout of "
               "pathfinder32/{}/{{imgs/0/sample_0.png,metadata/0.npy}}",
               root, wanted, level, wanted));
  }
  if (found.size() > 1) {
    throw DataError(format("[pathfinder] {} holds the level {} more than once: {} and {}; name one of them with --data",
                           root, level, found[0], found[1]));
  }
  return found.front();
}

std::vector<std::string_view> split_blanks(std::string_view line) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t end = std::min(line.find_first_of(" \t", at), line.size());
    if (end > at) words.push_back(line.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

}  // namespace

std::string pathfinder_folder(const std::string& level) {
  if (level == "hard") return "curv_contour_length_14";
  if (level == "intermediate") return "curv_contour_length_9";
  if (level == "easy") return "curv_baseline";
  throw ConfigError(format("[data.level] unknown level '{}'; expected hard, intermediate or easy", level));
}

PathfinderDataset::PathfinderDataset(const std::string& root, const std::string& level)
    : folder_(find_level(root, level)) {
  TreeNotes unused;
  Listing listing;
  for (const std::string& name : find_files(folder_ + "/metadata", ".npy", unused)) {
    read_metadata(folder_ + "/metadata/" + name, listing);
  }
  if (entries_.empty()) throw DataError(format("[pathfinder] {}/metadata lists no picture", folder_));
  note_left_out(listing);
  for (const std::string& what : left_out_) {
    log_message(LogLevel::warning, format("[pathfinder] {}: {} are left out", folder_, what));
  }
  fingerprint_ = format("pathfinder {}: {} samples, list {}", level, size(), hex(hash_));
}

void PathfinderDataset::note_left_out(const Listing& listing) {
  if (listing.empty > 0) left_out_.push_back(format("{} pictures of 0 bytes", listing.empty));
  if (listing.repeated > 0) {
    left_out_.push_back(
        format("{} lines that repeat a picture (such as {})", listing.repeated, listing.example_of_repeated));
  }
  TreeNotes unused;
  const std::string images = folder_ + "/imgs";
  if (!is_folder(images)) return;
  std::int64_t unlisted = 0;
  std::string example;
  for (const FoundFile& found : find_pictures(images, unused)) {
    const std::string file = "imgs/" + found.path;
    if (listing.labels.contains(file)) continue;
    if (unlisted++ == 0) example = file;
  }
  if (unlisted > 0) left_out_.push_back(format("{} pictures without a line (such as {})", unlisted, example));
}

void PathfinderDataset::read_metadata(const std::string& path, Listing& listing) {
  LineReader lines(path);
  std::string_view line;
  while (lines.next(line)) {
    if (lines.number() == 1 && line.starts_with("\x93NUMPY")) {
      throw DataError(format(
          "[pathfinder] {} is a binary NumPy array; expected text, one line a picture: folder file number label ...",
          path));
    }
    const std::vector<std::string_view> words = split_blanks(line);
    if (words.empty()) continue;  // an empty line, as at the end of some files
    if (words.size() < 4 || (words[3] != "0" && words[3] != "1")) {
      throw DataError(format("[pathfinder] {}: expected folder, file, number and a label 0 or 1, got '{}'",
                             lines.where(), line.substr(0, 80)));
    }
    Entry entry{fs::path(format("{}/{}", words[0], words[1])).lexically_normal().string(), words[3] == "1" ? 1 : 0};
    const auto [known, is_new] = listing.labels.emplace(entry.file, entry.label);
    if (!is_new) {
      if (known->second != entry.label) {
        throw DataError(format("[pathfinder] {}: the picture {} has the label {} here, and {} in a line before",
                               lines.where(), entry.file, entry.label, known->second));
      }
      if (listing.repeated++ == 0) listing.example_of_repeated = entry.file;
      continue;
    }
    std::error_code failure;
    const auto bytes = fs::file_size(folder_ + "/" + entry.file, failure);
    if (failure) {
      throw DataError(
          format("[pathfinder] {}: the picture {}/{}: {}", lines.where(), folder_, entry.file, failure.message()));
    }
    if (bytes == 0) {
      ++listing.empty;
      continue;
    }
    hash_ = content_hash(entry.file.data(), entry.file.size(), hash_ ^ static_cast<std::uint64_t>(entry.label));
    const std::uint64_t size = bytes;
    hash_ = content_hash(&size, sizeof size, hash_);
    entries_.push_back(std::move(entry));
  }
}

const PathfinderDataset::Entry& PathfinderDataset::entry(std::int64_t index) const {
  if (index < 0 || index >= size()) {
    throw IndexError(format("[pathfinder] index {} is outside the {} samples", index, size()));
  }
  return entries_[static_cast<std::size_t>(index)];
}

Sample PathfinderDataset::get(std::int64_t index, Generator&) const {
  const std::string path = describe(index);
  Sample sample;
  sample.label = entry(index).label;
  sample.tokens = grey_tokens(read_image(path, {.grey = true}), path);
  return sample;
}

TokenCounts PathfinderDataset::token_counts(std::int64_t index) const {
  entry(index);
  return {.length = kLraPixels, .kept = kLraPixels};
}

const std::vector<std::string>& PathfinderDataset::class_names() const {
  static const std::vector<std::string> names = {"apart", "connected"};
  return names;
}

}  // namespace polygrad

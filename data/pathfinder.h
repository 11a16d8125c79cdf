// Pathfinder32: do the two discs lie on one dashed path? Grey pictures of 32 x 32, one token a pixel, id = grey value.
//
// Where this stands: above decode.h and grey_pixels.h. Layout of the long-range-arena release:
// pathfinder32/curv_contour_length_14/{imgs/K/sample_I.png, metadata/K.npy}. The metadata are text in spite of their
// name, one line a picture, separated by blanks: folder file number label ... Read next: pathfinder_generator.h.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/dataset.h"

namespace polygrad {

// The folder of a level: "hard" curv_contour_length_14, "intermediate" curv_contour_length_9, "easy" curv_baseline.
// Throws ConfigError for another word.
std::string pathfinder_folder(const std::string& level);

class PathfinderDataset : public Dataset {
 public:
  // `root` is the level's folder, or one that holds it, at most three levels above. Pictures are read when they are
  // asked for; left out, with a warning, are files of 0 bytes, pictures that no line names, and lines that repeat one.
  // Throws DataError naming what is wrong: no such folder, two of them (both are named), metadata that are not text, a
  // line without label, a picture that is not there, or that has two labels.
  PathfinderDataset(const std::string& root, const std::string& level);

  std::int64_t size() const override { return static_cast<std::int64_t>(entries_.size()); }
  // tokens (1, 1024). Throws ImageError for a file that can't be decoded or has another size.
  Sample get(std::int64_t index, Generator& generator) const override;
  std::int64_t label(std::int64_t index) const override { return entry(index).label; }
  TokenCounts token_counts(std::int64_t index) const override;
  const std::vector<std::string>& class_names() const override;
  std::string describe(std::int64_t index) const override { return folder_ + "/" + entry(index).file; }
  // Of names, sizes and labels; the pictures themselves are not read.
  std::string fingerprint() const override { return fingerprint_; }

  const std::string& folder() const { return folder_; }
  const std::vector<std::string>& left_out() const { return left_out_; }  // "3 pictures of 0 bytes"

 private:
  struct Entry {
    std::string file;  // "imgs/0/sample_0.png"
    std::int64_t label = 0;
  };
  // What the metadata have said so far.
  struct Listing {
    std::unordered_map<std::string, std::int64_t> labels;  // by file
    std::int64_t empty = 0, repeated = 0;
    std::string example_of_repeated;
  };
  void read_metadata(const std::string& path, Listing& listing);
  void note_left_out(const Listing& listing);
  const Entry& entry(std::int64_t index) const;

  std::string folder_;
  std::vector<Entry> entries_;
  std::vector<std::string> left_out_;
  std::uint64_t hash_ = 0;
  std::string fingerprint_;
};

}  // namespace polygrad

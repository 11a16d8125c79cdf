// IDX, the format of MNIST and its relatives: big-endian, 0 0 type dims, the sizes, the elements. Plain or gzipped.
//
// Where this stands: above dataset.h and inflate.h. Read next: fashion_mnist.h.
// Source of the format: SPEC of MNIST's authors (yann.lecun.com/exdb/mnist).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace polygrad {

// The array of an IDX file. Gzip is recognised by its first bytes, whatever the name. Element types: 0x08 u8 -> u8;
// 0x09 i8, 0x0B i16, 0x0C i32 -> i32; 0x0D -> f32; 0x0E -> f64. Throws DataError naming the file and what is wrong
// (missing, not IDX, unknown type, sizes whose product overflows, shorter or longer than the header says); the length
// is checked before anything is allocated.
Tensor read_idx(const std::string& path);
// The same from memory; `name` is for messages.
Tensor parse_idx(std::string_view bytes, const std::string& name);

// Grey images with labels from a pair of IDX files, held in memory as u8.
class IdxDataset : public Dataset {
 public:
  // `name` is for the fingerprint; class_names empty: "0" ... up to the largest label. Throws DataError where a file is
  // malformed, the images are not u8 (N, H, W), the labels not N integers, or a label has no class name.
  IdxDataset(std::string name, const std::string& images_path, const std::string& labels_path,
             std::vector<std::string> class_names = {});

  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  Sample get(std::int64_t index, Generator& generator) const override;  // image (1, H, W) u8
  std::int64_t label(std::int64_t index) const override;
  const std::vector<std::string>& class_names() const override { return class_names_; }
  std::string describe(std::int64_t index) const override;
  std::string fingerprint() const override { return fingerprint_; }

  std::int64_t height() const { return images_.size(1); }
  std::int64_t width() const { return images_.size(2); }
  // Mean and standard deviation of all pixels, scaled to [0, 1].
  double mean() const { return mean_; }
  double stddev() const { return stddev_; }

 private:
  void check_index(std::int64_t index) const;
  std::string name_, images_path_;
  Tensor images_;  // u8 (N, H, W)
  std::vector<std::int64_t> labels_;
  std::vector<std::string> class_names_;
  std::string fingerprint_;
  double mean_ = 0, stddev_ = 1;
};

// The path of one of the four files of a folder laid out as MNIST's: `stem`, or `stem`.gz where only that exists.
// Throws DataError naming the folder, the layout expected and `hint` (how to get the data).
std::string find_idx_file(const std::string& root, const std::string& stem, const std::string& hint);

}  // namespace polygrad

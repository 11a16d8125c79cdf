// CIFAR-10 and CIFAR-100 in their binary format: records of a label byte (CIFAR-100: coarse, then fine) and 3 x 32 x 32
// bytes, red, green, blue.
//
// Where this stands: above dataset.h, below catalog.h. The same pictures as class folders are image_folder.h's.
// Source of the format: Krizhevsky's page of CIFAR-10 (www.cs.toronto.edu/~kriz/cifar.html).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace polygrad {

// The channels of CIFAR's training images, scaled to [0, 1].
extern const std::vector<double> kCifar10Mean, kCifar10Stddev, kCifar100Mean, kCifar100Stddev;
const std::vector<std::string>& cifar10_classes();

enum class CifarLabels { ten, fine, coarse };

class CifarDataset : public Dataset {
 public:
  // Reads the files one after another. Throws DataError naming a file that can't be read, whose size is not a multiple
  // of the record's (3073, CIFAR-100: 3074), or that holds a label outside the classes.
  CifarDataset(std::string name, std::vector<std::string> files, std::vector<std::string> class_names,
               CifarLabels labels = CifarLabels::ten, bool grey = false);

  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  Sample get(std::int64_t index, Generator& generator) const override;  // (3 or 1, 32, 32) u8
  std::int64_t label(std::int64_t index) const override;
  const std::vector<std::string>& class_names() const override { return class_names_; }
  std::string describe(std::int64_t index) const override;
  std::string fingerprint() const override { return fingerprint_; }

 private:
  void check_index(std::int64_t index) const;
  bool grey_;
  std::vector<std::string> files_;
  std::vector<std::int64_t> ends_;  // of the files, in records
  std::vector<std::uint8_t> pixels_;
  std::vector<std::int64_t> labels_;
  std::vector<std::string> class_names_;
  std::string fingerprint_;
};

struct CifarParts {
  std::shared_ptr<const CifarDataset> train, test;
  std::vector<std::string> notes;
};

// Whether `root` (or the archive's folder in it) holds the binary files (CIFAR-10: of either part).
bool has_cifar10(const std::string& root);
bool has_cifar100(const std::string& root);
// data_batch_1.bin ... data_batch_5.bin (those that are there, from 1 on) and test_batch.bin; names from
// batches.meta.txt where it is there. `only` "train" or "test": the other part stays null, and needs no file. Throws
// DataError naming a file that is missing or malformed.
CifarParts open_cifar10(const std::string& root, bool grey = false, const std::string& only = "");
// train.bin and test.bin; names from fine_label_names.txt or coarse_label_names.txt.
CifarParts open_cifar100(const std::string& root, CifarLabels labels, bool grey = false);

}  // namespace polygrad

// Data sets by name, split into the parts a training run needs.
//
// Where this stands: the top of data/ but for the loader; a new data set is one entry in catalog.cpp.
// Read next: loader.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace polygrad {

struct DataOptions {
  std::string name = "fashion_mnist";  // or "idx"
  std::string root;                    // empty: the data set's own place, where it has one
  double val_fraction = -1;            // of the training samples; negative: the data set's default (1/12)
  std::int64_t limit_train = -1;       // at most so many samples; negative: all
  std::int64_t limit_val = -1;         // of val, and of test
  std::uint64_t split_seed = 0;        // chooses the held-out samples; not the run's seed, so that seeds compare
  bool stratify = true;                // the held-out samples have each class's share
};

// val is for choosing a model, test is looked at once. Where a data set has no labelled test part, test is null.
struct DataParts {
  std::shared_ptr<const Dataset> train, val, test;
  std::vector<std::string> class_names;
  std::int64_t channels = 0, height = 0, width = 0;
  std::vector<double> mean, stddev;  // of the training images, per channel, pixels in [0, 1]
  // All parts in one line; changes with the data, the split and the limits.
  std::string fingerprint() const;
};

// Throws ConfigError for an unknown name or options that leave a part empty, DataError where the data is missing or
// malformed.
DataParts open_data(const DataOptions& options);
std::vector<std::string> data_names();

}  // namespace polygrad

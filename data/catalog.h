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
  std::string name = "fashion_mnist";  // see data_names()
  std::string root;                    // empty: the data set's own place, where it has one
  double val_fraction = -1;            // of the training samples, where there is no val; negative: 1/12, LRA 1/10
  std::int64_t limit_train = -1;       // at most so many samples; negative: all
  std::int64_t limit_val = -1;         // of val, and of test
  std::uint64_t split_seed = 0;        // chooses the held-out samples; not the run's seed, so that seeds compare
  bool stratify = true;                // the held-out samples have each class's share
  // Of pictures in files:
  bool exif = false;           // turn them as their EXIF orientation says
  bool grey = false;           // one channel
  std::string class_map = {};  // a file with the classes' order; "": natural order of the folders' names
  bool coarse = false;         // CIFAR-100: the 20 coarse classes
  // Of the Long Range Arena (lra.h):
  std::int64_t text_length = -1;  // tokens a model can take; negative: the task's
  bool text_margin = false;       // the last 24 of each 1024 positions stay empty, as the reference leaves them
  std::string dev = "holdout";    // text: what val is, "holdout" (of the training reviews) or "test"
  std::string level = "hard";     // pathfinder
  bool operator==(const DataOptions&) const = default;
};

// What the samples of a data set are, in every part of it.
struct SampleFormat {
  // Of images; 0 x 0 where they have many sizes and the model's is chosen freely.
  std::int64_t channels = 0, height = 0, width = 0;
  bool resizable = false;  // u8 pictures, which may become the model's size whatever their own
  // Of tokens; 0 and "" for images.
  std::int64_t towers = 0, length = 0;  // sequences of a sample, and the most tokens of one
  std::string vocabulary;               // "listops", "bytes", "grey"
  std::string report;                   // lines for people: lengths, cuts, classes of each part that was opened
};

// val is for choosing a model, test is looked at once. Where a data set has no labelled test part, test is null.
struct DataParts : SampleFormat {
  std::shared_ptr<const Dataset> train, val, test;
  std::vector<std::string> class_names;
  double crop_ratio = 1;             // of evaluation: the crop's side / the shorter side it is cut from
  std::vector<double> mean, stddev;  // for normalisation, per channel, pixels in [0, 1]
  std::vector<std::string> notes;    // one for each thing that was odd about the files
  std::int64_t hidden = 0;           // entries of the folders that were passed over
  std::vector<std::string> foreign;  // files that are no pictures
  // All parts in one line; changes with the data, the split and the limits.
  std::string fingerprint() const;
};

// Throws ConfigError for an unknown name or options that leave a part empty, DataError where the data is missing or
// malformed.
DataParts open_data(const DataOptions& options);
std::vector<std::string> data_names();

struct EvalData : SampleFormat {
  std::shared_ptr<const Dataset> dataset;  // under the classes that were asked for
  std::string split;                       // "train", "val" or "test"
  std::vector<std::string> notes;
};

// What a model that knows `class_names` is evaluated on. Labels are matched by name, so a folder may hold some of the
// classes, in any order; one that the model does not know is a DataError. `split` "": test where there is one, else
// val. Only that part's files need be there: of pictures, ROOT/val, ROOT/test or class folders in ROOT will do; of the
// Long Range Arena, the part's file. `trained_on` is the fingerprint of the training data: where ROOT is that same
// undivided folder, the held-out part of it is evaluated, else all of it.
EvalData open_eval_data(const DataOptions& options, const std::string& split,
                        const std::vector<std::string>& class_names, const std::string& trained_on);

}  // namespace polygrad

#include "data/catalog.h"

#include <algorithm>
#include <cmath>

#include "data/fashion_mnist.h"
#include "data/split.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

namespace {

// 5,000 of the 60,000 of MNIST's relatives.
constexpr double kDefaultValFraction = 1.0 / 12;

std::vector<std::int64_t> all_positions(std::int64_t size) {
  std::vector<std::int64_t> positions;
  for (std::int64_t i = 0; i < size; ++i) positions.push_back(i);
  return positions;
}

std::shared_ptr<const Dataset> part(const std::shared_ptr<const Dataset>& base, std::vector<std::int64_t> positions,
                                    std::int64_t limit, const DataOptions& options) {
  if (limit >= 0) positions = choose_samples(positions, limit, options.split_seed);
  if (static_cast<std::int64_t>(positions.size()) == base->size()) return base;
  return std::make_shared<Subset>(base, std::move(positions));
}

// Holds part of `train_file` out for choosing a model; the test file stays whole.
DataParts split_parts(const std::shared_ptr<IdxDataset>& train_file, const std::shared_ptr<IdxDataset>& test_file,
                      const DataOptions& options) {
  if (train_file->height() != test_file->height() || train_file->width() != test_file->width()) {
    throw DataError(format("[data] training images are {} x {}, test images {} x {}", train_file->height(),
                           train_file->width(), test_file->height(), test_file->width()));
  }
  if (test_file->classes() > train_file->classes()) {
    throw DataError(format("[data] the test labels have {} classes, the training labels {}", test_file->classes(),
                           train_file->classes()));
  }
  const double fraction = options.val_fraction < 0 ? kDefaultValFraction : options.val_fraction;
  const std::int64_t size = train_file->size();
  const auto held_out = static_cast<std::int64_t>(std::llround(fraction * static_cast<double>(size)));
  if (held_out < 1 || held_out >= size) {
    throw ConfigError(
        format("[data] data.val_fraction {} holds {} of {} training samples out; expected at least one on "
               "either side, because the best checkpoint is chosen on them",
               fraction, held_out, size));
  }
  std::vector<std::int64_t> labels;
  if (options.stratify) {
    for (std::int64_t i = 0; i < size; ++i) labels.push_back(train_file->label(i));
  }
  Split split = split_samples(size, held_out, options.split_seed, labels);

  DataParts parts;
  parts.train = part(train_file, std::move(split.train), options.limit_train, options);
  parts.val = part(train_file, std::move(split.val), options.limit_val, options);
  parts.test = part(test_file, all_positions(test_file->size()), options.limit_val, options);
  parts.class_names = train_file->class_names();
  parts.channels = 1;
  parts.height = train_file->height();
  parts.width = train_file->width();
  parts.mean = {train_file->mean()};
  parts.stddev = {train_file->stddev()};
  return parts;
}

}  // namespace

std::vector<std::string> data_names() { return {"fashion_mnist", "idx"}; }

DataParts open_data(const DataOptions& options) {
  if (options.limit_train == 0 || options.limit_val == 0) {
    throw ConfigError("[data] data.limit_train and data.limit_val leave no sample; expected at least 1");
  }
  if (options.name == "fashion_mnist") {
    const auto train = open_fashion_mnist(options.root, true);
    return split_parts(train, open_fashion_mnist(options.root, false), options);
  }
  if (options.name == "idx") {
    const auto train = open_idx_folder(options.root, true);
    return split_parts(train, open_idx_folder(options.root, false), options);
  }
  std::string known;
  for (const std::string& name : data_names()) known += (known.empty() ? "" : ", ") + name;
  throw ConfigError(format("[data] no data set is called '{}'; known: {}", options.name, known));
}

std::string DataParts::fingerprint() const {
  std::string text = format("train: {}; val: {}", train->fingerprint(), val->fingerprint());
  if (test) text += format("; test: {}", test->fingerprint());
  return text;
}

}  // namespace polygrad

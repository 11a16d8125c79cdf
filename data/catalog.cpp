#include "data/catalog.h"

#include <algorithm>
#include <cmath>

#include "data/cifar.h"
#include "data/fashion_mnist.h"
#include "data/file_tree.h"
#include "data/image_folder.h"
#include "data/lra.h"
#include "data/split.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

namespace {

// 5,000 of the 60,000 of MNIST's relatives.
constexpr double kDefaultValFraction = 1.0 / 12;

// ImageNet's numbers, which timm's recipes use for all photographs.
const std::vector<double> kPhotoMean = {0.485, 0.456, 0.406}, kPhotoStddev = {0.229, 0.224, 0.225};
const std::vector<double> kGreyMean = {0.449}, kGreyStddev = {0.226};
constexpr double kPhotoCropRatio = 0.875;
constexpr std::int64_t kTinyImageNetSide = 64, kCifarSide = 32;

// Fills the three parts: val is held out of `train` where there is none, test stays whole.
void fill_parts(DataParts& parts, const std::shared_ptr<const Dataset>& train,
                const std::shared_ptr<const Dataset>& val, const std::shared_ptr<const Dataset>& test,
                const DataOptions& options) {
  std::vector<std::int64_t> train_positions = all_positions(train->size());
  if (val) {
    parts.val = part_of(val, all_positions(val->size()), options.limit_val, options.split_seed);
  } else {
    const double fraction = options.val_fraction < 0 ? kDefaultValFraction : options.val_fraction;
    Split split = hold_out(*train, train_positions, fraction, options.split_seed, options.stratify);
    parts.val = part_of(train, std::move(split.val), options.limit_val, options.split_seed);
    train_positions = std::move(split.train);
  }
  parts.train = part_of(train, std::move(train_positions), options.limit_train, options.split_seed);
  if (test) parts.test = part_of(test, all_positions(test->size()), options.limit_val, options.split_seed);
  parts.class_names = train->class_names();
}

DataParts idx_parts(const std::shared_ptr<IdxDataset>& train, const std::shared_ptr<IdxDataset>& test,
                    const DataOptions& options) {
  if (train->height() != test->height() || train->width() != test->width()) {
    throw DataError(format("[data] training images are {} x {}, test images {} x {}", train->height(), train->width(),
                           test->height(), test->width()));
  }
  if (test->classes() > train->classes()) {
    throw DataError(
        format("[data] the test labels have {} classes, the training labels {}", test->classes(), train->classes()));
  }
  DataParts parts;
  fill_parts(parts, train, nullptr, test, options);
  parts.channels = 1;
  parts.height = train->height();
  parts.width = train->width();
  parts.mean = {train->mean()};
  parts.stddev = {train->stddev()};
  return parts;
}

bool is_cifar(const DataOptions& options) { return options.name == "cifar10" || options.name == "cifar100"; }

// What the pictures' sizes and colours are by their data set.
void describe_pictures(SampleFormat& parts, const DataOptions& options) {
  parts.resizable = true;
  parts.channels = options.grey ? 1 : 3;
  parts.height = parts.width = options.name == "tiny_imagenet" ? kTinyImageNetSide : is_cifar(options) ? kCifarSide : 0;
}

DataParts cifar_parts(const CifarParts& files, const DataOptions& options) {
  DataParts parts;
  fill_parts(parts, files.train, nullptr, files.test, options);
  describe_pictures(parts, options);
  parts.notes = files.notes;
  return parts;
}

bool has_cifar_files(const DataOptions& options) {
  return options.name == "cifar10" ? has_cifar10(options.root)
                                   : options.name == "cifar100" && has_cifar100(options.root);
}

CifarParts open_cifar(const DataOptions& options) {
  if (options.name == "cifar10") return open_cifar10(options.root, options.grey);
  return open_cifar100(options.root, options.coarse ? CifarLabels::coarse : CifarLabels::fine, options.grey);
}

ImageFolderOptions folder_options(const DataOptions& options) {
  return {.name = options.name, .decode = {.exif = options.exif, .grey = options.grey}, .class_map = options.class_map};
}

std::string image_root(const DataOptions& options) {
  return options.name == "tiny_imagenet" ? find_image_root(options.root, "tiny-imagenet-200")
         : options.name == "cifar10"     ? find_image_root(options.root, "cifar-10-images")
                                         : options.root;
}

DataParts picture_parts(const DataOptions& options) {
  ImageParts files = open_image_folder(image_root(options), folder_options(options));
  DataParts parts;
  fill_parts(parts, files.train, files.val, files.test, options);
  describe_pictures(parts, options);
  parts.notes = std::move(files.notes.lines);
  parts.hidden = files.notes.hidden;
  parts.foreign = std::move(files.notes.foreign);
  if (options.name == "image_folder") parts.crop_ratio = kPhotoCropRatio;
  return parts;
}

bool is_lra(const DataOptions& options) { return find_lra_task(options.name) != nullptr; }

bool is_known(const std::string& name) {
  const std::vector<std::string> names = data_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

void check_options(const DataOptions& options) {
  if (options.limit_train == 0 || options.limit_val == 0) {
    throw ConfigError("[data] data.limit_train and data.limit_val leave no sample; expected at least 1");
  }
  if (is_known(options.name)) return;
  std::string known;
  for (const std::string& name : data_names()) known += (known.empty() ? "" : ", ") + name;
  throw ConfigError(format("[data] no data set is called '{}'; known: {}", options.name, known));
}

bool in_idx_files(const DataOptions& options) { return options.name == "fashion_mnist" || options.name == "idx"; }

}  // namespace

std::vector<std::string> data_names() {
  std::vector<std::string> names = {"fashion_mnist", "cifar10", "cifar100", "tiny_imagenet", "image_folder", "idx"};
  for (const LraTask& task : lra_tasks()) names.push_back(task.data_name());
  return names;
}

DataParts open_data(const DataOptions& options) {
  check_options(options);
  if (options.name == "fashion_mnist") {
    const auto train = open_fashion_mnist(options.root, true);
    return idx_parts(train, open_fashion_mnist(options.root, false), options);
  }
  if (options.name == "idx") {
    const auto train = open_idx_folder(options.root, true);
    return idx_parts(train, open_idx_folder(options.root, false), options);
  }
  if (is_lra(options)) return open_lra(options);
  DataParts parts = has_cifar_files(options) ? cifar_parts(open_cifar(options), options) : picture_parts(options);
  if (parts.channels == 1) {
    parts.mean = kGreyMean;
    parts.stddev = kGreyStddev;
  } else if (is_cifar(options)) {
    parts.mean = options.name == "cifar10" ? kCifar10Mean : kCifar100Mean;
    parts.stddev = options.name == "cifar10" ? kCifar10Stddev : kCifar100Stddev;
  } else {
    parts.mean = kPhotoMean;
    parts.stddev = kPhotoStddev;
  }
  return parts;
}

EvalData open_eval_data(const DataOptions& options, const std::string& split,
                        const std::vector<std::string>& class_names, const std::string& trained_on) {
  check_options(options);
  EvalData result;
  std::shared_ptr<const Dataset> found;
  const std::string root = image_root(options);
  if (!in_idx_files(options) && !is_lra(options) && !has_cifar_files(options) && !is_folder(root + "/train")) {
    // Pictures without a training part beside them.
    TreeNotes notes;
    std::string name;
    const auto files = open_image_part(root, split, folder_options(options), name, notes);
    // The undivided folder of the training itself: its held-out part is what `val` means, so that goes below.
    const std::string divided = format(" of {} train: ", options.name);
    const std::size_t val = trained_on.find("; val: ");
    const bool undivided =
        name.empty() && val != std::string::npos && trained_on.find(divided, val) != std::string::npos;
    const bool same = undivided && trained_on.find(divided + files->content(), val) != std::string::npos;
    if (!same) {
      found = part_of(files, all_positions(files->size()), options.limit_val, options.split_seed);
      result.split = name.empty() ? (split.empty() ? "val" : split) : name;
      describe_pictures(result, options);
      result.notes = std::move(notes.lines);
      if (undivided) {
        result.notes.push_back(
            format("{}: not the folder as it was trained on; all of its {} pictures are evaluated, also any that were "
                   "trained on",
                   root, files->size()));
      }
    }
  }
  if (!found) {
    DataParts parts = is_lra(options) ? open_lra(options, split.empty() ? "test" : split) : open_data(options);
    if (is_lra(options) && split.empty() && !parts.test) parts = open_lra(options, "val");
    result.split = !split.empty() ? split : parts.test && parts.test->size() > 0 ? "test" : "val";
    found = result.split == "test" ? parts.test : result.split == "val" ? parts.val : parts.train;
    if (!found || found->size() == 0) {
      throw DataError(format("[eval] the data set {} has no {} part", options.name, result.split));
    }
    static_cast<SampleFormat&>(result) = parts;
    result.notes = std::move(parts.notes);
  }
  result.dataset = with_classes(std::move(found), class_names);
  return result;
}

std::string DataParts::fingerprint() const {
  std::string text = format("train: {}; val: {}", train->fingerprint(), val->fingerprint());
  if (test) text += format("; test: {}", test->fingerprint());
  return text;
}

}  // namespace polygrad

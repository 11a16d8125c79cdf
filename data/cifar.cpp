#include "data/cifar.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "data/color.h"
#include "data/file_tree.h"
#include "data/image_folder.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"

namespace polygrad {

const std::vector<double> kCifar10Mean = {0.4914, 0.4822, 0.4465}, kCifar10Stddev = {0.2470, 0.2435, 0.2616};
const std::vector<double> kCifar100Mean = {0.5071, 0.4865, 0.4409}, kCifar100Stddev = {0.2673, 0.2564, 0.2762};

namespace {

constexpr std::int64_t kSide = 32, kPixels = 3 * kSide * kSide;
constexpr const char* kFolder10 = "cifar-10-batches-bin";
constexpr const char* kFolder100 = "cifar-100-binary";

std::string folder_of(const std::string& root, const char* inner, const char* file) {
  return !is_file(root + "/" + file) && is_file(root + "/" + inner + "/" + file) ? root + "/" + inner : root;
}

constexpr const char* kFirst10 = "data_batch_1.bin";
constexpr const char* kTest10 = "test_batch.bin";

// Either part is enough.
std::string cifar10_folder(const std::string& root) {
  const std::string folder = folder_of(root, kFolder10, kFirst10);
  return is_file(folder + "/" + kFirst10) ? folder : folder_of(root, kFolder10, kTest10);
}

std::string data_bytes(const std::string& path) {
  try {
    return read_file(path);
  } catch (const IoError& error) {  // of the data, not of a checkpoint
    throw DataError(format("[cifar] {}", error.what()));
  }
}

std::vector<std::string> names_of(const std::string& path, std::vector<std::string> otherwise) {
  if (!is_file(path)) return otherwise;
  std::vector<std::string> names;
  std::string line;
  for (const char c : data_bytes(path) + "\n") {
    if (c != '\n' && c != '\r') {
      line += c;
    } else if (!line.empty()) {
      names.push_back(std::exchange(line, {}));
    }
  }
  if (names.size() != otherwise.size()) {
    throw DataError(format("[cifar] {}: {} names; expected {}", path, names.size(), otherwise.size()));
  }
  return names;
}

std::vector<std::string> numbers(std::int64_t count) {
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < count; ++i) names.push_back(format("{}", i));
  return names;
}

void note_sizes(const std::string& folder, CifarParts& parts) {
  constexpr std::int64_t kTrain = 50000, kTest = 10000;
  std::string found, whole;
  bool is_whole = true;
  const auto add = [&](const char* part, const auto& data, std::int64_t all) {
    if (!data) return;  // it wasn't asked for
    const char* joint = found.empty() ? "" : " and ";
    found += format("{}{} {}", joint, data->size(), part);
    whole += format("{}{}", joint, all);
    is_whole = is_whole && data->size() == all;
  };
  add("training", parts.train, kTrain);
  add("test", parts.test, kTest);
  if (!is_whole) parts.notes.push_back(format("{}: {} pictures; the whole set has {}", folder, found, whole));
}

}  // namespace

const std::vector<std::string>& cifar10_classes() {
  static const std::vector<std::string> names = {"airplane", "automobile", "bird",  "cat",  "deer",
                                                 "dog",      "frog",       "horse", "ship", "truck"};
  return names;
}

CifarDataset::CifarDataset(std::string name, std::vector<std::string> files, std::vector<std::string> class_names,
                           CifarLabels labels, bool grey)
    : grey_(grey), files_(std::move(files)), class_names_(std::move(class_names)) {
  const std::size_t label_bytes = labels == CifarLabels::ten ? 1 : 2, record = label_bytes + kPixels;
  std::uint64_t hash = 0;
  for (const std::string& file : files_) {
    const std::string bytes = data_bytes(file);
    if (bytes.empty() || bytes.size() % record != 0) {
      throw DataError(
          format("[cifar] {}: {} bytes; expected a multiple of {} (a record: {} label byte{} and 3 x 32 x 32 "
                 "pixels), {} are left over",
                 file, bytes.size(), record, label_bytes, label_bytes == 1 ? "" : "s", bytes.size() % record));
    }
    hash = content_hash(bytes.data(), bytes.size(), hash);
    for (std::size_t at = 0; at < bytes.size(); at += record) {
      const std::int64_t label = static_cast<std::uint8_t>(bytes[at + (labels == CifarLabels::fine ? 1 : 0)]);
      if (label >= classes()) {
        throw DataError(
            format("[cifar] {}[{}]: label {} is outside the {} classes", file, at / record, label, classes()));
      }
      labels_.push_back(label);
      const auto* pixels = reinterpret_cast<const std::uint8_t*>(bytes.data() + at + label_bytes);
      pixels_.insert(pixels_.end(), pixels, pixels + kPixels);
    }
    ends_.push_back(static_cast<std::int64_t>(labels_.size()));
  }
  fingerprint_ =
      format("{}: {} pictures of {} classes, content {}{}", name, size(), classes(), hex(hash), grey_ ? ", grey" : "");
}

void CifarDataset::check_index(std::int64_t index) const {
  if (index < 0 || index >= size()) throw IndexError(format("[cifar] picture {} of {}", index, size()));
}

Sample CifarDataset::get(std::int64_t index, Generator&) const {
  check_index(index);
  TensorOptions options;
  options.dtype = DType::u8;
  Tensor image = Tensor::empty(Shape{3, kSide, kSide}, options);
  std::memcpy(image.data<std::uint8_t>(), pixels_.data() + index * kPixels, static_cast<std::size_t>(kPixels));
  return {grey_ ? to_grey(image) : image, labels_[static_cast<std::size_t>(index)]};
}

std::int64_t CifarDataset::label(std::int64_t index) const {
  check_index(index);
  return labels_[static_cast<std::size_t>(index)];
}

std::string CifarDataset::describe(std::int64_t index) const {
  check_index(index);
  const auto file = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
  return format("{}[{}]", files_[file], index - (file == 0 ? 0 : ends_[file - 1]));
}

bool has_cifar10(const std::string& root) {
  const std::string folder = cifar10_folder(root);
  return is_file(folder + "/" + kFirst10) || is_file(folder + "/" + kTest10);
}

bool has_cifar100(const std::string& root) { return is_file(folder_of(root, kFolder100, "train.bin") + "/train.bin"); }

CifarParts open_cifar10(const std::string& root, bool grey, const std::string& only) {
  const std::string folder = cifar10_folder(root);
  const std::vector<std::string> names = names_of(folder + "/batches.meta.txt", cifar10_classes());
  CifarParts parts;
  if (only != "test") {
    std::vector<std::string> files = {folder + "/" + kFirst10};
    std::string missing = is_file(files[0]) ? "" : files[0];
    for (int i = 2; i <= 5; ++i) {
      const std::string file = format("{}/data_batch_{}.bin", folder, i);
      if (!is_file(file)) {
        if (missing.empty()) missing = file;
        continue;
      }
      if (!missing.empty()) throw DataError(format("[cifar] {} is missing, though {} is there", missing, file));
      files.push_back(file);
    }
    parts.train = std::make_shared<CifarDataset>("cifar10 train", files, names, CifarLabels::ten, grey);
  }
  if (only != "train") {
    parts.test = std::make_shared<CifarDataset>("cifar10 test", std::vector<std::string>{folder + "/" + kTest10}, names,
                                                CifarLabels::ten, grey);
  }
  note_sizes(folder, parts);
  return parts;
}

CifarParts open_cifar100(const std::string& root, CifarLabels labels, bool grey) {
  const std::string folder = folder_of(root, kFolder100, "train.bin");
  const bool fine = labels == CifarLabels::fine;
  const std::vector<std::string> names =
      names_of(folder + (fine ? "/fine_label_names.txt" : "/coarse_label_names.txt"), numbers(fine ? 100 : 20));
  CifarParts parts;
  for (const std::string part : {"train", "test"}) {
    (part == "train" ? parts.train : parts.test) =
        std::make_shared<CifarDataset>(format("cifar100 {} {}", part, fine ? "fine" : "coarse"),
                                       std::vector<std::string>{folder + "/" + part + ".bin"}, names, labels, grey);
  }
  note_sizes(folder, parts);
  return parts;
}

}  // namespace polygrad

#include "data/image_files.h"

#include <map>

#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

namespace {

class Relabelled : public Dataset {
 public:
  Relabelled(std::shared_ptr<const Dataset> base, std::vector<std::int64_t> labels, std::vector<std::string> names)
      : base_(std::move(base)), labels_(std::move(labels)), names_(std::move(names)) {}

  std::int64_t size() const override { return base_->size(); }
  Sample get(std::int64_t index, Generator& generator) const override {
    Sample sample = base_->get(index, generator);
    sample.label = mapped(sample.label);
    return sample;
  }
  std::int64_t label(std::int64_t index) const override { return mapped(base_->label(index)); }
  TokenCounts token_counts(std::int64_t index) const override { return base_->token_counts(index); }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::string describe(std::int64_t index) const override { return base_->describe(index); }
  std::string fingerprint() const override {
    return format("{} under {} classes", base_->fingerprint(), names_.size());
  }

 private:
  std::int64_t mapped(std::int64_t label) const { return labels_.at(static_cast<std::size_t>(label)); }
  std::shared_ptr<const Dataset> base_;
  std::vector<std::int64_t> labels_;  // of the base's labels
  std::vector<std::string> names_;
};

}  // namespace

ImageFileDataset::ImageFileDataset(std::string name, std::string root, std::vector<ImageEntry> entries,
                                   std::vector<std::string> class_names, DecodeOptions options)
    : root_(std::move(root)), entries_(std::move(entries)), class_names_(std::move(class_names)), options_(options) {
  std::uint64_t hash = 0;
  for (const ImageEntry& entry : entries_) {
    if (entry.label < 0 || entry.label >= classes()) {
      throw DataError(
          format("[data] {}/{}: label {} is outside the {} classes", root_, entry.path, entry.label, classes()));
    }
    hash = content_hash(entry.path.data(), entry.path.size(), hash);
    hash = content_hash(&entry.label, sizeof entry.label, hash);
    hash = content_hash(&entry.bytes, sizeof entry.bytes, hash);
  }
  for (const std::string& class_name : class_names_) hash = content_hash(class_name.data(), class_name.size(), hash);
  content_ = format("{} pictures of {} classes, files {}", size(), classes(), hex(hash));
  fingerprint_ =
      format("{}: {}{}{}", name, content_, options_.exif ? ", turned by EXIF" : "", options_.grey ? ", grey" : "");
}

const ImageEntry& ImageFileDataset::checked(std::int64_t index) const {
  if (index < 0 || index >= size()) throw IndexError(format("[data] picture {} of {}", index, size()));
  return entries_[static_cast<std::size_t>(index)];
}

Sample ImageFileDataset::get(std::int64_t index, Generator&) const {
  const ImageEntry& entry = checked(index);
  return {read_image(root_ + "/" + entry.path, options_), entry.label};
}

std::int64_t ImageFileDataset::label(std::int64_t index) const { return checked(index).label; }

std::string ImageFileDataset::describe(std::int64_t index) const { return root_ + "/" + checked(index).path; }

std::shared_ptr<const Dataset> with_classes(std::shared_ptr<const Dataset> dataset,
                                            const std::vector<std::string>& class_names) {
  std::map<std::string, std::int64_t> places;
  for (std::size_t i = 0; i < class_names.size(); ++i) {
    if (!places.emplace(class_names[i], static_cast<std::int64_t>(i)).second) {
      throw DataError(format("[data] the class '{}' stands twice in the list of classes", class_names[i]));
    }
  }
  if (dataset->class_names() == class_names) return dataset;
  const std::vector<std::int64_t> counts = class_counts(*dataset);
  std::vector<std::int64_t> labels;
  for (std::size_t c = 0; c < counts.size(); ++c) {
    const std::string& name = dataset->class_names()[c];
    const auto found = places.find(name);
    if (found == places.end() && counts[c] > 0) {
      throw DataError(format(
          "[data] the class '{}' ({} samples, such as {}) is none of the {} known classes ({} ... {})", name, counts[c],
          [&] {
            std::int64_t i = 0;
            while (dataset->label(i) != static_cast<std::int64_t>(c)) ++i;
            return dataset->describe(i);
          }(),
          class_names.size(), class_names.empty() ? "" : class_names.front(),
          class_names.empty() ? "" : class_names.back()));
    }
    labels.push_back(found == places.end() ? 0 : found->second);
  }
  return std::make_shared<Relabelled>(std::move(dataset), std::move(labels), class_names);
}

}  // namespace polygrad

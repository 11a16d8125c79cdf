// ImageFileDataset: pictures in files, decoded when they are asked for.
//
// Where this stands: above decode.h; image_folder.h finds the files. Read next: image_folder.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/decode.h"

namespace polygrad {

struct ImageEntry {
  std::string path;  // relative to the data set's root
  std::int64_t label = 0;
  std::uint64_t bytes = 0;
};

class ImageFileDataset : public Dataset {
 public:
  // `name` is for the fingerprint. Throws DataError where a label has no class name.
  ImageFileDataset(std::string name, std::string root, std::vector<ImageEntry> entries,
                   std::vector<std::string> class_names, DecodeOptions options = {});

  std::int64_t size() const override { return static_cast<std::int64_t>(entries_.size()); }
  // (3, H, W) u8, or (1, H, W) where grey is asked for, of the picture's own size. Throws ImageError.
  Sample get(std::int64_t index, Generator& generator) const override;
  std::int64_t label(std::int64_t index) const override;
  const std::vector<std::string>& class_names() const override { return class_names_; }
  std::string describe(std::int64_t index) const override;  // the path
  // Of names, sizes and labels; the files themselves are not read.
  std::string fingerprint() const override { return fingerprint_; }

  // The part of the fingerprint that tells the files themselves, whatever the part is called.
  const std::string& content() const { return content_; }
  const DecodeOptions& options() const { return options_; }

 private:
  const ImageEntry& checked(std::int64_t index) const;
  std::string root_;
  std::vector<ImageEntry> entries_;
  std::vector<std::string> class_names_;
  DecodeOptions options_;
  std::string fingerprint_, content_;
};

// A data set under another list of class names: each label becomes the place of its name in `class_names`. Throws
// DataError naming a class (with samples) that is not in the list, or a name that stands in it twice.
std::shared_ptr<const Dataset> with_classes(std::shared_ptr<const Dataset> dataset,
                                            const std::vector<std::string>& class_names);

}  // namespace polygrad

// Dataset: numbered samples with labels. The interface that data sets of the library and of applications share.
//
// Where this stands: the bottom of data/, above engine/. Models never see it; the loader turns it into batches.
// Read next: idx.h and fashion_mnist.h (data sets), split.h (parts of one), loader.h (batches).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/generator.h"
#include "engine/tensor.h"

namespace polygrad {

// One of image and tokens is defined.
struct Sample {
  Tensor image;             // (channels, height, width) on the CPU; u8 as stored, f32 where the data set computes
  std::int64_t label = -1;  // 0 <= label < class_names().size()
  Tensor tokens = {};       // i64 (towers, length) on the CPU; kNoToken behind the end of a shorter tower
};

// Stands where a sequence has ended: any negative number does, and no vocabulary has one.
inline constexpr std::int64_t kNoToken = -1;

// What a sample of tokens was before it was cut to the model's length; of several towers, the longest one's lengths.
struct TokenCounts {
  std::int64_t length = 0;   // tokens in the file
  std::int64_t kept = 0;     // of those, the tokens of the sample
  std::int64_t unknown = 0;  // tokens that the vocabulary does not have, of all towers
  bool empty = false;        // the sample, or one of its towers, has no token at all
};

// All functions are const and may be called by several threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;
  // Sample `index` of size(). Random choices come from `generator` alone, which belongs to this sample and epoch, so
  // that a sample does not depend on who asks for it and when. The image is the caller's: not shared with later calls.
  // Throws IndexError, and DataError naming the file where it can't be read.
  virtual Sample get(std::int64_t index, Generator& generator) const = 0;
  // The label alone, without decoding an image.
  virtual std::int64_t label(std::int64_t index) const = 0;
  // Without reading the sample; all 0 for images.
  virtual TokenCounts token_counts(std::int64_t) const { return {}; }
  virtual const std::vector<std::string>& class_names() const = 0;
  // Where sample `index` comes from, for messages: a path, or "FILE[17]".
  virtual std::string describe(std::int64_t index) const = 0;
  // One line that changes where the samples, their order or their labels do: names, sizes, a hash of labels and
  // content. A checkpoint keeps it, and a resume with another one is refused.
  virtual std::string fingerprint() const = 0;

  std::int64_t classes() const { return static_cast<std::int64_t>(class_names().size()); }
};

// Some samples of another data set, in the order of `indices`. Throws IndexError where one is outside `base`.
class Subset : public Dataset {
 public:
  Subset(std::shared_ptr<const Dataset> base, std::vector<std::int64_t> indices);

  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  Sample get(std::int64_t index, Generator& generator) const override;
  std::int64_t label(std::int64_t index) const override;
  TokenCounts token_counts(std::int64_t index) const override;
  const std::vector<std::string>& class_names() const override { return base_->class_names(); }
  std::string describe(std::int64_t index) const override;
  std::string fingerprint() const override;

  const std::vector<std::int64_t>& indices() const { return indices_; }

 private:
  std::int64_t checked(std::int64_t index) const;
  std::shared_ptr<const Dataset> base_;
  std::vector<std::int64_t> indices_;
};

// How many samples each class has.
std::vector<std::int64_t> class_counts(const Dataset& dataset);

// A 64-bit hash for fingerprints (not for secrets): the same on every machine.
std::uint64_t content_hash(const void* data, std::size_t bytes, std::uint64_t start = 0);
std::string hex(std::uint64_t value);  // 16 digits

}  // namespace polygrad

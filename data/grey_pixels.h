// Pictures as sequences: one token for each of 32 x 32 pixels, row by row; id = grey value, 0 ... 255.
//
// Where this stands: above dataset.h. GreyTokens makes the long-range-arena task "image" of any data set of small
// colour pictures (cifar.h, image_folder.h); pathfinder.h is the other one that reads pictures.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace polygrad {

inline constexpr std::int64_t kLraSide = 32, kLraPixels = kLraSide * kLraSide;
inline constexpr const char* kGreyVocabulary = "grey";  // what a checkpoint calls these ids

// What TensorFlow's rgb_to_grayscale gives for bytes: trunc((0.2989 r + 0.5870 g + 0.1140 b) * 255.5), r, g, b in
// [0, 1]. Not Pillow's grey (color.h).
std::uint8_t grey_of(std::uint8_t red, std::uint8_t green, std::uint8_t blue);
// The ids of a picture, tokens i64 (1, 1024): of u8 (3, 32, 32) grey_of, of (1, 32, 32) the values as they are. `name`
// is for messages. Throws ImageError for another size.
Tensor grey_tokens(const Tensor& picture, const std::string& name);

class GreyTokens : public Dataset {
 public:
  // Throws ValueError where `pictures` is null.
  explicit GreyTokens(std::shared_ptr<const Dataset> pictures);

  std::int64_t size() const override { return pictures_->size(); }
  // tokens (1, 1024). Throws ImageError for a picture of another size than 32 x 32, and what the pictures throw.
  Sample get(std::int64_t index, Generator& generator) const override;
  std::int64_t label(std::int64_t index) const override { return pictures_->label(index); }
  TokenCounts token_counts(std::int64_t index) const override;
  const std::vector<std::string>& class_names() const override { return pictures_->class_names(); }
  std::string describe(std::int64_t index) const override { return pictures_->describe(index); }
  std::string fingerprint() const override { return "grey tokens of " + pictures_->fingerprint(); }

 private:
  std::shared_ptr<const Dataset> pictures_;
};

}  // namespace polygrad

// Augmentation and preprocessing of one image, each random choice from the sample's own generator.
//
// Where this stands: between a data set and a batch; the loader calls an ImageTransform for each sample.
// Read next: loader.h; mix.h for what mixes the samples of a batch. Source: the order of steps is timm's.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/generator.h"
#include "engine/tensor.h"

namespace polygrad {

// Images are (channels, height, width) on the CPU, u8 or f32; else ShapeError, DTypeError. Each function returns a new
// tensor.

// Mirrored left to right.
Tensor flip_horizontal(const Tensor& image);
// The image surrounded by `padding` zeros, of which the window of the image's size at (top, left) is kept:
// 0 <= top, left <= 2 * padding; padding, padding is the image itself. Throws ValueError.
Tensor shift_crop(const Tensor& image, std::int64_t padding, std::int64_t top, std::int64_t left);
// f32: (x / 255 - mean[c]) / stddev[c] for u8, (x - mean[c]) / stddev[c] for f32. One number per channel, or one for
// all, or none (0 and 1). Throws ValueError for another count or a stddev that is not positive.
Tensor normalize(const Tensor& image, const std::vector<double>& mean, const std::vector<double>& stddev);

struct AugmentOptions {
  bool flip = false;              // mirror half of the images
  std::int64_t crop_padding = 0;  // pad by so many zeros, then crop at a random place; 0: off
  std::vector<double> mean, stddev;
};

// shift_crop, flip, normalize, in this order. The same options without flip and crop_padding are the evaluation's.
class ImageTransform {
 public:
  explicit ImageTransform(AugmentOptions options);
  // (C, H, W) u8 or f32 -> f32.
  Tensor operator()(const Tensor& image, Generator& generator) const;
  const AugmentOptions& options() const { return options_; }

 private:
  AugmentOptions options_;
};

}  // namespace polygrad

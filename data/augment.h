// Augmentation and preprocessing of one image, each random choice from the sample's own generator.
//
// Where this stands: between a data set and a batch; the loader calls an ImageTransform for each sample.
// Read next: randaugment.h, resize.h; loader.h; mix.h for what mixes the samples of a batch. Source: the steps, their
// order and numbers are those of timm's data/transforms_factory.py, transforms.py and random_erasing.py.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "data/resize.h"
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

// What is done to one image. In this order:
//   to its size        resized_crop, or a resize of the shorter side and a centre crop
//   shift_crop, flip, RandAugment, normalize, random erasing
struct AugmentOptions {
  bool flip = false;              // mirror half of the images
  std::int64_t crop_padding = 0;  // pad by so many zeros, then crop at a random place; 0: off
  std::vector<double> mean = {}, stddev = {};
  std::int64_t height = 0, width = 0;  // of the result; 0: the image's own
  std::int64_t resize = 0;             // shorter side before the centre crop; 0: crop or pad the image as it is
  Filter filter = Filter::bicubic;
  bool resized_crop = false;                     // a random part of the image, resized; needs height and width
  std::array<double, 2> crop_scale = {0.08, 1};  // the part's share of the area
  bool randaugment = false;                      // rand-m9-mstd0.5-inc1; u8 images only
  double random_erasing = 0;                     // probability of filling a rectangle with noise
};

// The part of a height x width image that "random resized crop" takes: ten tries with an area share from `scale` and a
// log-uniform aspect from 3/4 to 4/3, then the middle.
Box draw_resized_crop(std::int64_t height, std::int64_t width, const std::array<double, 2>& scale,
                      Generator& generator);
// Fills a random rectangle of a normalised image with N(0, 1): 2 % to 1/3 of the area, aspect 0.3 to 1/0.3; ten tries.
void erase_randomly(Tensor& image, Generator& generator);

// Without flip, crop_padding, resized_crop, randaugment and random_erasing it is the evaluation's.
class ImageTransform {
 public:
  // Throws ValueError for sizes and probabilities that make no sense.
  explicit ImageTransform(AugmentOptions options);
  // (C, H, W) u8 or f32 -> f32. An f32 image keeps its size: only u8 is resized and changed in colour (DTypeError).
  Tensor operator()(const Tensor& image, Generator& generator) const;
  // The steps before normalize, for pictures of what is trained on.
  Tensor pixels(const Tensor& image, Generator& generator) const;
  const AugmentOptions& options() const { return options_; }

 private:
  AugmentOptions options_;
};

}  // namespace polygrad

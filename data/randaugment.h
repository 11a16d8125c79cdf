// RandAugment "rand-m9-mstd0.5-inc1": two of fifteen changes of an image, each applied with probability one half.
//
// Where this stands: above color.h and geometry.h; augment.h calls it between flip and normalisation.
// Source: Cubuk et al., arXiv 1909.13719, with the tables and defaults of timm's data/auto_augment.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/geometry.h"
#include "engine/generator.h"
#include "engine/tensor.h"

namespace polygrad {

enum class AugmentOp : std::uint8_t {
  auto_contrast,
  equalize,
  invert,
  rotate,
  posterize,
  solarize,
  solarize_add,
  color,
  contrast,
  brightness,
  sharpness,
  shear_x,
  shear_y,
  translate_x,
  translate_y
};
constexpr int kAugmentOps = 15;
const char* to_string(AugmentOp op);

// What the op takes at magnitude `level` (0 to 10): degrees, bits, a threshold, an addend, a blending factor, a shear
// or a share of the side. `negated` is the sign's draw, which ops without a direction ignore. 0 for the first three.
double augment_argument(AugmentOp op, double level, bool negated);
// (1 or 3, H, W) u8 -> the same shape.
Tensor apply_augment(AugmentOp op, const Tensor& image, double argument, Filter filter, const Fill& fill);

struct RandAugmentOptions {
  int ops = 2;               // drawn with replacement
  double probability = 0.5;  // of applying each
  double magnitude = 9, magnitude_stddev = 0.5;
  Filter filter = Filter::bicubic;
  Fill fill = {128};  // of what comes from outside the image
};

Tensor rand_augment(const Tensor& image, const RandAugmentOptions& options, Generator& generator);

}  // namespace polygrad

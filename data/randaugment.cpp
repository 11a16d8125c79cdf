#include "data/randaugment.h"

#include <algorithm>

#include "data/color.h"
#include "data/u8_image.h"

namespace polygrad {

namespace {

constexpr double kMaxLevel = 10;

}  // namespace

const char* to_string(AugmentOp op) {
  static const char* const names[kAugmentOps] = {
      "auto_contrast", "equalize",   "invert",    "rotate",  "posterize", "solarize",    "solarize_add", "color",
      "contrast",      "brightness", "sharpness", "shear_x", "shear_y",   "translate_x", "translate_y"};
  return names[static_cast<int>(op)];
}

double augment_argument(AugmentOp op, double level, bool negated) {
  const auto with_sign = [&](double value) { return negated ? -value : value; };
  const double share = level / kMaxLevel;
  switch (op) {
    case AugmentOp::auto_contrast:
    case AugmentOp::equalize:
    case AugmentOp::invert:
      return 0;
    case AugmentOp::rotate:
      return with_sign(share * 30);
    case AugmentOp::posterize:
      return 4 - static_cast<int>(share * 4);
    case AugmentOp::solarize:
      return 256 - std::min(256, static_cast<int>(share * 256));
    case AugmentOp::solarize_add:
      return std::min(128, static_cast<int>(share * 110));
    case AugmentOp::color:
    case AugmentOp::contrast:
    case AugmentOp::brightness:
    case AugmentOp::sharpness:
      return std::max(0.1, 1.0 + with_sign(share * 0.9));
    case AugmentOp::shear_x:
    case AugmentOp::shear_y:
      return with_sign(share * 0.3);
    case AugmentOp::translate_x:
    case AugmentOp::translate_y:
      return with_sign(share * 0.45);
  }
  throw InternalError("[rand_augment] an op without a table row");
}

Tensor apply_augment(AugmentOp op, const Tensor& image, double argument, Filter filter, const Fill& fill) {
  switch (op) {
    case AugmentOp::auto_contrast:
      return auto_contrast(image);
    case AugmentOp::equalize:
      return equalize(image);
    case AugmentOp::invert:
      return invert(image);
    case AugmentOp::rotate:
      return rotate(image, argument, filter, fill);
    case AugmentOp::posterize:
      return posterize(image, static_cast<int>(argument));
    case AugmentOp::solarize:
      return solarize(image, static_cast<int>(argument));
    case AugmentOp::solarize_add:
      return solarize_add(image, static_cast<int>(argument));
    case AugmentOp::color:
      return adjust_color(image, argument);
    case AugmentOp::contrast:
      return adjust_contrast(image, argument);
    case AugmentOp::brightness:
      return adjust_brightness(image, argument);
    case AugmentOp::sharpness:
      return adjust_sharpness(image, argument);
    case AugmentOp::shear_x:
      return shear_x(image, argument, filter, fill);
    case AugmentOp::shear_y:
      return shear_y(image, argument, filter, fill);
    case AugmentOp::translate_x:
      return translate_x(image, argument, filter, fill);
    case AugmentOp::translate_y:
      return translate_y(image, argument, filter, fill);
  }
  throw InternalError("[rand_augment] an op that nothing applies");
}

Tensor rand_augment(const Tensor& image, const RandAugmentOptions& options, Generator& generator) {
  Tensor result = checked_u8("rand_augment", image);
  for (int i = 0; i < options.ops; ++i) {
    // All draws of an op are taken whether it is applied or not, so that the numbers behind it keep their places.
    const auto op = static_cast<AugmentOp>(generator.integer(0, kAugmentOps));
    const bool applied = generator.bernoulli(options.probability);
    const double level = std::clamp(options.magnitude + options.magnitude_stddev * generator.normal(), 0.0, kMaxLevel);
    const bool negated = generator.bernoulli(0.5);
    if (applied) result = apply_augment(op, result, augment_argument(op, level, negated), options.filter, options.fill);
  }
  return result;
}

}  // namespace polygrad

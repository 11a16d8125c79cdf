#include "data/grey_pixels.h"

#include <algorithm>

#include "data/decode.h"
#include "data/u8_image.h"

namespace polygrad {

std::uint8_t grey_of(std::uint8_t red, std::uint8_t green, std::uint8_t blue) {
  constexpr float kScale = 1.0f / 255;
  const float grey = 0.2989f * (static_cast<float>(red) * kScale) + 0.5870f * (static_cast<float>(green) * kScale) +
                     0.1140f * (static_cast<float>(blue) * kScale);
  return static_cast<std::uint8_t>(std::min(255.0f, grey * 255.5f));
}

Tensor grey_tokens(const Tensor& picture, const std::string& name) {
  const Tensor from = checked_u8("grey_tokens", picture);
  if (from.size(1) != kLraSide || from.size(2) != kLraSide) {
    throw ImageError(ImageFault::unsupported, format("[grey_tokens] {}: {} x {} pixels; expected {} x {}", name,
                                                     from.size(1), from.size(2), kLraSide, kLraSide));
  }
  TensorOptions options;
  options.dtype = DType::i64;
  Tensor tokens = Tensor::empty(Shape{1, kLraPixels}, options);
  const std::uint8_t* pixels = from.data<std::uint8_t>();
  std::int64_t* ids = tokens.data<std::int64_t>();
  if (from.size(0) == 1) {
    std::copy(pixels, pixels + kLraPixels, ids);
  } else {
    for (std::int64_t i = 0; i < kLraPixels; ++i) {
      ids[i] = grey_of(pixels[i], pixels[i + kLraPixels], pixels[i + 2 * kLraPixels]);
    }
  }
  return tokens;
}

GreyTokens::GreyTokens(std::shared_ptr<const Dataset> pictures) : pictures_(std::move(pictures)) {
  if (!pictures_) throw ValueError("[grey_tokens] no data set of pictures given");
}

Sample GreyTokens::get(std::int64_t index, Generator& generator) const {
  Sample sample = pictures_->get(index, generator);
  sample.tokens = grey_tokens(sample.image, describe(index));
  sample.image = Tensor();
  return sample;
}

TokenCounts GreyTokens::token_counts(std::int64_t index) const {
  label(index);  // throws for an index outside
  return {.length = kLraPixels, .kept = kLraPixels};
}

}  // namespace polygrad

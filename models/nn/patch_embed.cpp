#include "models/nn/patch_embed.h"

#include "engine/error.h"
#include "engine/format.h"
#include "ops/matmul.h"
#include "ops/patch.h"
#include "ops/view.h"

namespace polygrad {

namespace {

std::array<std::int64_t, 2> checked_grid(std::array<std::int64_t, 2> image, std::array<std::int64_t, 2> patch) {
  for (int i = 0; i < 2; ++i) {
    if (patch[i] < 1 || image[i] < 1 || image[i] % patch[i] != 0) {
      throw ConfigError(
          format("[model.patch_size] patches do not cover the image: image {}x{}, patch {}x{} (height x width); "
                 "expected a patch whose sides divide the image's",
                 image[0], image[1], patch[0], patch[1]));
    }
  }
  return {image[0] / patch[0], image[1] / patch[1]};
}

}  // namespace

PatchEmbed::Projection::Projection(std::int64_t dim, std::int64_t channels, std::array<std::int64_t, 2> patch)
    : weight(parameter("weight", {dim, channels, patch[0], patch[1]}, Init::fan_in(channels * patch[0] * patch[1]))),
      bias(parameter("bias", {dim}, Init::fan_in(channels * patch[0] * patch[1]))) {}

PatchEmbed::PatchEmbed(std::array<std::int64_t, 2> image_size, std::array<std::int64_t, 2> patch_size,
                       std::int64_t channels, std::int64_t dim)
    : image_size_(image_size),
      patch_size_(patch_size),
      grid_(checked_grid(image_size, patch_size)),
      channels_(channels),
      dim_(dim),
      proj_(child<Projection>("proj", dim, channels, patch_size)) {}

Tensor PatchEmbed::forward(const Tensor& images, const ForwardContext&) const {
  const Scope scope(name());
  if (images.dim() != 4 || images.size(1) != channels_ || images.size(2) != image_size_[0] ||
      images.size(3) != image_size_[1]) {
    throw ShapeError(format("[{}] images of the wrong shape: expected (batch, {}, {}, {}), got {}", path(), channels_,
                            image_size_[0], image_size_[1], to_string(images.shape())));
  }
  const Tensor patches = patch_unfold(images, patch_size_[0], patch_size_[1]);  // (batch, tokens, channels*ph*pw)
  const Tensor embedded = linear(patches, reshape(proj_.weight, {dim_, patches.size(-1)}), proj_.bias);
  return embedded.to(proj_.bias.dtype());  // the stream of tokens has the parameters' precision, not the products'
}

}  // namespace polygrad

// PatchEmbed: cuts images into patches and maps each to a token. The weight has the shape of the convolution it stands
// for, (dim, channels, patch_h, patch_w), under the names that timm's files use ("proj.weight", "proj.bias").
#pragma once

#include <array>

#include "models/nn/module.h"

namespace polygrad {

class PatchEmbed : public Module {
 public:
  // Heights come first in {height, width}. Throws ConfigError where the patch does not divide the image.
  PatchEmbed(std::array<std::int64_t, 2> image_size, std::array<std::int64_t, 2> patch_size, std::int64_t channels,
             std::int64_t dim);
  // (batch, channels, height, width) -> (batch, tokens, dim), patches row by row. Throws ShapeError.
  Tensor forward(const Tensor& images, const ForwardContext& context = {}) const;

  std::array<std::int64_t, 2> grid() const { return grid_; }  // patches per column, per row
  std::int64_t tokens() const { return grid_[0] * grid_[1]; }

 private:
  // The convolution's parameters, in a module of their own for the sake of their names.
  struct Projection : Module {
    Projection(std::int64_t dim, std::int64_t channels, std::array<std::int64_t, 2> patch);
    const Tensor& weight;
    const Tensor& bias;
  };
  std::array<std::int64_t, 2> image_size_, patch_size_, grid_;
  std::int64_t channels_, dim_;
  Projection& proj_;
};

}  // namespace polygrad

// Folders of small pictures for tests, written with the PNG writer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/png.h"
#include "engine/tensor.h"

namespace polygrad::testing {

// (3, height, width) of one colour with a mark that differs for each `seed`.
inline Tensor small_picture(int red, int green, int blue, int seed = 0, std::int64_t height = 8,
                            std::int64_t width = 8) {
  std::vector<std::uint8_t> pixels;
  for (const int value : {red, green, blue}) {
    for (std::int64_t i = 0; i < height * width; ++i) {
      pixels.push_back(static_cast<std::uint8_t>(i == 0 ? seed : i == 1 ? seed / 256 : value));
    }
  }
  return Tensor::from_vector(pixels, Shape{3, height, width});
}

inline void write_picture(const std::string& path, const Tensor& picture) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  write_png(path, picture);
}

// `count` pictures 0.png, 1.png, ... in FOLDER, whose colour tells `kind` (0 red, 1 green, 2 blue, 3 grey) apart.
inline void write_class(const std::string& folder, int kind, int count, int first_seed = 0) {
  for (int i = 0; i < count; ++i) {
    const int other = kind == 3 ? 200 : 40;
    write_picture(folder + "/" + std::to_string(i) + ".png",
                  small_picture(kind == 0 ? 200 : other, kind == 1 ? 200 : other, kind == 2 ? 200 : other,
                                1000 * kind + first_seed + i));
  }
}

}  // namespace polygrad::testing

#include "own_libraries.h"

#include <Eigen/Dense>
#include <nlohmann/json.hpp>
// Not static: a copy that polygrad let out would be a second definition.
#define STB_IMAGE_IMPLEMENTATION
#define STBI_ONLY_PNM
#include <stb_image.h>

std::vector<float> own_product(const std::vector<float>& a, const std::vector<float>& b, int m, int k, int n) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Matrix product = Eigen::Map<const Matrix>(a.data(), m, k) * Eigen::Map<const Matrix>(b.data(), k, n);
  return std::vector<float>(product.data(), product.data() + product.size());
}

bool own_json_round_trip() {
  const nlohmann::json value = nlohmann::json::parse(R"({"a": [1, 2.5, null], "b": {"c": "text"}})");
  return nlohmann::json::parse(value.dump()) == value && value["a"][1] == 2.5;
}

bool own_image_decodes() {
  const unsigned char image[] = {'P', '5', ' ', '2', ' ', '1', ' ', '2', '5', '5', '\n', 7, 200};
  int width = 0, height = 0, channels = 0;
  unsigned char* pixels = stbi_load_from_memory(image, sizeof image, &width, &height, &channels, 1);
  const bool right = pixels != nullptr && width == 2 && height == 1 && pixels[0] == 7 && pixels[1] == 200;
  stbi_image_free(pixels);
  return right;
}

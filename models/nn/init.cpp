#include "models/nn/init.h"

#include <cmath>

#include "engine/autograd.h"
#include "engine/factory.h"

namespace polygrad {

namespace {

// FNV-1a: the same number for the same path on every machine (std::hash promises nothing).
std::uint64_t hash_path(std::string_view path) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : path) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

}  // namespace

Init Init::fan_in(std::int64_t fan_in) { return uniform(1 / std::sqrt(static_cast<double>(fan_in))); }

void fill(Tensor& parameter, const Init& init, std::uint64_t seed, std::string_view path) {
  const NoGradGuard no_grad;
  if (init.kind == Init::Kind::constant) {
    parameter.fill_(init.value);
    return;
  }
  Generator generator(derive_seed(seed, hash_path(path)));
  TensorOptions options;
  options.generator = &generator;
  const bool normal = init.kind == Init::Kind::normal;
  Tensor values = normal ? randn(parameter.shape(), options) : rand(parameter.shape(), options);
  const float scale = static_cast<float>(init.value);
  float* const data = values.data<float>();
  for (std::int64_t i = 0, n = values.numel(); i < n; ++i) {
    // 2u - 1 is exact (u is a multiple of 2^-24), so each value is rounded once.
    data[i] = normal ? data[i] * scale : (2 * data[i] - 1) * scale;
  }
  parameter.copy_(values.to(parameter.device()));
}

}  // namespace polygrad

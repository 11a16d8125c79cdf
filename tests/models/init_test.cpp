// Initialisation: the distributions, and that the numbers depend on nothing but seed and path.
#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "engine/factory.h"
#include "engine/parallel.h"
#include "models/weights.h"
#include "models/zoo.h"

using namespace polygrad;

namespace {

struct Moments {
  double mean = 0, std = 0, largest = 0;
};

Moments moments(const Tensor& tensor) {
  const std::vector<float> values = tensor.to_vector<float>();
  Moments m;
  for (const float v : values) m.mean += v;
  m.mean /= static_cast<double>(values.size());
  for (const float v : values) {
    m.std += (v - m.mean) * (v - m.mean);
    m.largest = std::max(m.largest, std::abs(static_cast<double>(v)));
  }
  m.std = std::sqrt(m.std / static_cast<double>(values.size()));
  return m;
}

// ViT-Tiny for 64 x 64 images, patches of 16, 200 classes.
ModelConfig tiny_config(std::uint64_t seed) {
  ModelConfig config;
  config.image_size = {64, 64};
  config.num_classes = 200;
  config.seed = seed;
  return config;
}

}  // namespace

TEST_CASE("each kind of parameter has its distribution") {
  const auto model = create_model("vit_tiny", tiny_config(1));
  for (const auto& [path, tensor] : model->named_parameters()) {
    CAPTURE(path);
    const Moments m = moments(tensor);
    const double n = static_cast<double>(tensor.numel());
    const bool is_bias = path.ends_with(".bias"), is_norm = path.find("norm") != std::string::npos;
    if (path == "patch_embed.proj.weight" || path == "patch_embed.proj.bias") {
      const double bound = 1 / std::sqrt(3.0 * 16 * 16);
      CHECK(m.largest <= bound * (1 + 1e-6));
      CHECK(m.largest > 0.9 * bound);
      CHECK(m.std == doctest::Approx(bound / std::sqrt(3.0)).epsilon(0.2));
    } else if (is_norm && !is_bias) {
      CHECK(tensor.to_vector<float>() == std::vector<float>(static_cast<std::size_t>(tensor.numel()), 1.0f));
    } else if (is_bias) {
      CHECK(m.largest == 0);
    } else {
      const double std = path == "cls_token" ? 1e-6 : 0.02;
      CHECK(std::abs(m.mean) < 5 * std / std::sqrt(n));
      CHECK(m.std == doctest::Approx(std).epsilon(5 / std::sqrt(n)));
      CHECK(m.largest < 7 * std);  // no outlier: never the +-2 that a truncation at f32's edge would yield
    }
  }
  const auto deit = create_model("deit_tiny", tiny_config(1));
  CHECK(moments(deit->find("cls_token")).std == doctest::Approx(0.02).epsilon(0.3));
}

TEST_CASE("the fingerprint is SHA-256 over names, dtypes, shapes and bytes") {
  CHECK(fingerprint({}) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  const NamedTensors two = {{"w", Tensor::from_vector<float>({1, -2}, {2})},
                            {"b", Tensor::from_vector<std::int64_t>({7}, {1})}};
  CHECK(fingerprint(two) == "4847d65501114c3164ec810a18e16ab098eee5dfc64ff4f182e43245a5c47b30");
  const NamedTensors zeros_55 = {{"z", zeros({55})}};  // crosses the 64-byte blocks with a padding block of its own
  CHECK(fingerprint(zeros_55) == "f953bea6c8e3f42f63ebd975c4942124f73d25d031c680f862d5977727287562");
}

TEST_CASE("the same seed gives the same bytes, with any number of threads and in any build") {
  const auto model = create_model("vit_tiny", tiny_config(0));
  const std::string expected = fingerprint(model->state());
  CHECK(expected == "8edaf261db0d8db48258f156cdaef17455e0538b67fbc3756c590f0c26d9efc5");
  for (const int threads : {1, 3}) {
    const NumThreadsGuard guard(threads);
    CHECK(fingerprint(create_model("vit_tiny", tiny_config(0))->state()) == expected);
  }
  CHECK(fingerprint(create_model("vit_tiny", tiny_config(1))->state()) != expected);
  initialize(*model, 1);
  initialize(*model, 0);
  CHECK(fingerprint(model->state()) == expected);
}

TEST_CASE("a parameter's numbers depend on its path, not on its neighbours") {
  ModelConfig config = tiny_config(5);
  config.depth = 2;
  const auto two = create_model("vit_tiny", config);
  config.depth = 3;
  const auto three = create_model("vit_tiny", config);
  for (const auto& [path, tensor] : two->named_parameters()) {
    CAPTURE(path);
    CHECK(tensor.to_vector<float>() == three->find(path).to_vector<float>());
  }
  // No two weights of one shape are alike.
  std::set<std::vector<float>> seen;
  for (int i = 0; i < 3; ++i) {
    CHECK(seen.insert(three->find("blocks." + std::to_string(i) + ".attn.proj.weight").to_vector<float>()).second);
  }
}

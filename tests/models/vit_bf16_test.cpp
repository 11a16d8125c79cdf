// A vision transformer in mixed precision: its gradients beside f32's, the same bits for any threads, what stays f32.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "engine/autograd.h"
#include "engine/factory.h"
#include "engine/parallel.h"
#include "models/zoo.h"
#include "ops/loss.h"
#include "ops/precision.h"
#include "tests/support/skip.h"

using namespace polygrad;

#define SKIP_WITHOUT_BF16_UNITS                     \
  if (!precision_obstacle(Precision::bf16).empty()) \
  return polygrad::testing::skip("no bf16 units: this CPU, or no oneDNN")

namespace {

struct Step {
  Tensor logits, loss;
  std::map<std::string, Tensor> gradients;
};

// Forward and backward of a fresh model on the same images and labels.
Step run(const std::string& name, ModelConfig config, std::int64_t batch, Precision precision, int threads = 0) {
  const NumThreadsGuard threads_guard(threads > 0 ? threads : num_threads());
  config.seed = 3;
  const std::unique_ptr<Model> model = create_model(name, config);
  Generator generator(1);
  const Shape input = model->input_shape();
  const Tensor images = randn({batch, input[0], input[1], input[2]}, {.generator = &generator});
  std::vector<std::int64_t> labels(static_cast<std::size_t>(batch));
  for (std::int64_t& label : labels) label = generator.integer(0, model->num_classes());
  Step step;
  const PrecisionGuard guard(precision);
  ForwardContext context;
  context.training = true;
  step.logits = model->forward(images, context);
  step.loss = cross_entropy(step.logits, Tensor::from_vector(labels));
  step.loss.backward();
  for (const auto& [path, parameter] : model->named_parameters()) step.gradients[path] = parameter.grad();
  return step;
}

ModelConfig tiny_imagenet(const char* phi) {
  ModelConfig config;
  config.image_size = {64, 64};
  config.patch_size = {4, 4};
  config.num_classes = 200;
  config.phi = {phi};
  config.scale = "16";
  return config;
}

// The largest difference, in units of b's largest value.
double distance(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.detach().to(DType::f64).to_vector<double>(),
                            y = b.detach().to(DType::f64).to_vector<double>();
  double largest = 1e-300, difference = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    largest = std::max(largest, std::abs(y[i]));
    difference = std::abs(x[i] - y[i]) <= difference ? difference : std::abs(x[i] - y[i]);
  }
  return difference / largest;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::memcmp(a.ref().data, b.ref().data, static_cast<std::size_t>(a.numel()) * dtype_size(a.dtype())) == 0;
}

}  // namespace

TEST_CASE("ViT-Tiny: each parameter's gradient in bf16 beside f32's") {
  SKIP_WITHOUT_BF16_UNITS;
  const std::pair<const char*, double> cases[] = {{"softmax", 2e-2}, {"x3", 8e-2}};
  for (const auto& [phi, tolerance] : cases) {
    const Step wide = run("vit_tiny", tiny_imagenet(phi), 4, Precision::f32);
    const Step narrow = run("vit_tiny", tiny_imagenet(phi), 4, Precision::bf16);
    CAPTURE(std::string(phi));
    CHECK(narrow.logits.dtype() == DType::f32);
    CHECK(std::abs(narrow.loss.item<float>() - wide.loss.item<float>()) <= 1e-2f);
    REQUIRE(wide.gradients.size() == narrow.gradients.size());
    for (const auto& [path, expected] : wide.gradients) {
      const Tensor& got = narrow.gradients.at(path);
      CAPTURE(path);
      CHECK(got.dtype() == DType::f32);
      CHECK(distance(got, expected) <= tolerance);
    }
  }
}

TEST_CASE("a model in bf16: the same bits for 1, 2, 3 and 16 threads") {
  SKIP_WITHOUT_BF16_UNITS;
  ModelConfig config;
  config.image_size = {16, 16};
  config.patch_size = {2, 2};
  config.embed_dim = 48;
  config.num_heads = 3;
  config.depth = 2;
  config.num_classes = 5;
  config.dropout = 0.1;
  config.attention_dropout = 0.1;
  config.drop_path = 0.2;
  for (const char* phi : {"x3", "softmax", "x"}) {
    CAPTURE(std::string(phi));
    config.phi = {phi};
    const Step one = run("vit_tiny", config, 6, Precision::bf16, 1);
    for (const int threads : {2, 3, 16}) {
      CAPTURE(threads);
      const Step other = run("vit_tiny", config, 6, Precision::bf16, threads);
      CHECK(same_bits(one.logits.detach(), other.logits.detach()));
      for (const auto& [path, gradient] : one.gradients) CHECK(same_bits(gradient, other.gradients.at(path)));
    }
  }
}

TEST_CASE("a model in bf16 that pools the mean") {
  SKIP_WITHOUT_BF16_UNITS;
  ModelConfig config;
  config.image_size = {16, 16};
  config.patch_size = {4, 4};
  config.embed_dim = 48;
  config.num_heads = 3;
  config.depth = 2;
  config.num_classes = 5;
  config.pool = "mean";
  config.phi = {"softmax"};
  const Step wide = run("vit_tiny", config, 6, Precision::f32), narrow = run("vit_tiny", config, 6, Precision::bf16);
  for (const auto& [path, expected] : wide.gradients) {
    CAPTURE(path);
    CHECK(distance(narrow.gradients.at(path), expected) <= 3e-2);
  }
}

// The moving average of weights: its arithmetic, and that the trained model never notices it.
#include <doctest/doctest.h>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "models/optim/ema.h"
#include "models/weights.h"
#include "models/zoo.h"

using namespace polygrad;

namespace {

class Small : public Module {
 public:
  Small() : weight(parameter("weight", {2}, Init::ones())), seen(buffer("seen", {}, 0, DType::i64)) {
    initialize(*this, 0);
  }
  void set(double value, std::int64_t count) {
    const NoGradGuard no_grad;
    Tensor w = weight, s = seen;
    w.fill_(value);
    s.fill_(static_cast<double>(count));
  }
  const Tensor& weight;
  const Tensor& seen;
};

}  // namespace

TEST_CASE("the average follows; integer state is copied; the model stays as it is") {
  Small model, average;
  average.set(100, 100);
  Ema ema(average, model, 0.75);
  CHECK(average.weight.to_vector<float>()[0] == 1);  // starts as a copy
  model.set(5, 3);
  ema.update(model);
  CHECK(average.weight.to_vector<float>()[0] == doctest::Approx(0.75 * 1 + 0.25 * 5));
  CHECK(average.seen.item<std::int64_t>() == 3);
  ema.update(model);
  CHECK(average.weight.to_vector<float>()[0] == doctest::Approx(0.75 * 2 + 0.25 * 5));
  CHECK(ema.updates() == 2);
  CHECK(model.weight.to_vector<float>() == std::vector<float>(2, 5.0f));
}

TEST_CASE("evaluating the average changes no bit of the model, and of neither's graph") {
  ModelConfig config;
  config.image_size = {16, 16};
  config.patch_size = {8, 8};
  config.embed_dim = 16;
  config.num_heads = 2;
  config.depth = 2;
  config.num_classes = 4;
  const auto model = create_model("vit_tiny", config), average = create_model("vit_tiny", config);
  Ema ema(*average, *model, 0.9);
  const std::string before = fingerprint(model->state());
  const NoGradGuard no_grad;
  const Tensor images = randn({2, 3, 16, 16});
  CHECK(average->forward(images).to_vector<float>() == model->forward(images).to_vector<float>());
  CHECK(fingerprint(model->state()) == before);
}

TEST_CASE("saved and restored") {
  Small model, average, restored;
  Ema ema(average, model, 0.5);
  model.set(3, 1);
  ema.update(model);
  Ema again(restored, model, 0.5);
  again.import_state(ema.export_state(), ema.updates());
  CHECK(again.updates() == 1);
  CHECK(restored.weight.to_vector<float>() == average.weight.to_vector<float>());
  CHECK_THROWS_AS(again.import_state({{"weight", zeros({2})}}, 9), IoError);
  CHECK(again.updates() == 1);
}

TEST_CASE("two different models can't share an average") {
  ModelConfig config;
  config.image_size = {16, 16};
  config.depth = 1;
  const auto model = create_model("vit_tiny", config);
  config.depth = 2;
  const auto other = create_model("vit_tiny", config);
  CHECK_THROWS_AS(Ema(*other, *model, 0.9), ValueError);
  CHECK_THROWS_AS(Ema(*model, *model, 1.0), ValueError);
}

// Optimizers and parameter groups: first steps by hand, what is decayed, and state by name.
#include <doctest/doctest.h>

#include <map>

#include "engine/error.h"
#include "engine/factory.h"
#include "models/optim/adamw.h"
#include "models/optim/sgd.h"
#include "models/zoo.h"

using namespace polygrad;

namespace {

// Two named parameters, the first decayed.
class Pair : public Module {
 public:
  Pair() : weight(parameter("weight", {2, 2}, Init::ones())), bias(parameter("bias", {2}, Init::ones())) {
    initialize(*this, 0);
  }
  const Tensor& weight;
  const Tensor& bias;
};

void set_grad(const Tensor& parameter, double value) {
  Tensor handle = parameter;
  handle.set_grad(full(parameter.shape(), value));
}

float first(const Tensor& tensor) { return tensor.to_vector<float>()[0]; }

ScheduleValue lr(double value) { return {value, std::nullopt}; }

}  // namespace

TEST_CASE("AdamW's decay is decoupled: the first step by hand") {
  Pair model;
  AdamW optimizer(param_groups(model, 0.05));
  set_grad(model.weight, 0.5);
  set_grad(model.bias, 0.5);
  optimizer.step(lr(1e-3));
  CHECK(first(model.weight) == doctest::Approx(0.99895).epsilon(1e-7));  // 0.99900 if the decay went into the gradient
  CHECK(first(model.bias) == doctest::Approx(0.999).epsilon(1e-7));      // not decayed
}

TEST_CASE("with a zero gradient only the decay acts") {
  Pair model;
  AdamW optimizer(param_groups(model, 0.05));
  set_grad(model.weight, 0);
  set_grad(model.bias, 0);
  optimizer.step(lr(1e-3));
  CHECK(first(model.weight) == doctest::Approx(0.99995).epsilon(1e-7));
  CHECK(first(model.bias) == 1);
}

TEST_CASE("a schedule's beta1 takes the place of the optimizer's") {
  Pair a, b;
  AdamWOptions options;
  options.beta1 = 0.5;
  AdamW with_schedule(param_groups(a, 0)), with_option(param_groups(b, 0), options);
  for (const double gradient : {0.5, -0.25, 2.0}) {
    for (Pair* model : {&a, &b}) {
      set_grad(model->weight, gradient);
      set_grad(model->bias, gradient);
    }
    with_schedule.step({1e-2, 0.5});
    with_option.step(lr(1e-2));
  }
  CHECK(a.weight.to_vector<float>() == b.weight.to_vector<float>());
}

TEST_CASE("SGD by hand: momentum, dampening, Nesterov") {
  Pair model;
  SgdOptions options;
  options.momentum = 0.9;
  Sgd optimizer(param_groups(model, 0), options);
  set_grad(model.weight, 1);
  optimizer.step(lr(0.1));
  CHECK(first(model.weight) == doctest::Approx(0.9));
  optimizer.step(lr(0.1));
  CHECK(first(model.weight) == doctest::Approx(0.9 - 0.19));
  CHECK(first(model.bias) == 1);  // had no gradient

  Pair nesterov_model;
  options.nesterov = true;
  Sgd nesterov(param_groups(nesterov_model, 0), options);
  set_grad(nesterov_model.weight, 1);
  nesterov.step(lr(0.1));
  CHECK(first(nesterov_model.weight) == doctest::Approx(1 - 0.19));

  Pair decayed_model;
  Sgd decayed(param_groups(decayed_model, 0.5));
  set_grad(decayed_model.weight, 0);
  decayed.step(lr(0.1));
  CHECK(first(decayed_model.weight) == doctest::Approx(0.95));
}

TEST_CASE("gradients that a step scales are not written") {
  Pair clipped, scaled;
  AdamW a(param_groups(clipped, 0.05)), b(param_groups(scaled, 0.05));
  set_grad(clipped.weight, 1);
  set_grad(scaled.weight, 0.25);
  a.step(lr(1e-2), 0.25);
  b.step(lr(1e-2));
  CHECK(clipped.weight.to_vector<float>() == scaled.weight.to_vector<float>());
  CHECK(first(clipped.weight.grad()) == 1);
}

TEST_CASE("a parameter without a gradient is left alone, and so is its state") {
  Pair model;
  AdamW optimizer(param_groups(model, 0.05));
  set_grad(model.weight, 1);
  optimizer.step(lr(1e-3));
  CHECK(first(model.bias) == 1);
  CHECK(optimizer.gradients().size() == 1);
  std::map<std::string, Tensor> state;
  for (const auto& [name, tensor] : optimizer.export_state()) state[name] = tensor;
  CHECK(state.size() == 3);
  CHECK(state.at("step.weight").item<std::int64_t>() == 1);
  CHECK(first(state.at("exp_avg.weight")) == doctest::Approx(0.1));
  CHECK(first(state.at("exp_avg_sq.weight")) == doctest::Approx(0.001));
  optimizer.zero_grad();
  CHECK_FALSE(model.weight.grad().defined());
}

TEST_CASE("saved and restored in the middle, the steps go on to the same bits") {
  Pair straight, resumed;
  AdamW a(param_groups(straight, 0.05));
  auto b = std::make_unique<AdamW>(param_groups(resumed, 0.05));
  for (int step = 0; step < 6; ++step) {
    for (Pair* model : {&straight, &resumed}) {
      set_grad(model->weight, 0.1 * step - 0.2);
      if (step > 1) set_grad(model->bias, 0.3 - 0.1 * step);
    }
    a.step(lr(1e-2));
    b->step(lr(1e-2));
    if (step == 3) {
      NamedTensors state;
      for (const auto& [name, tensor] : b->export_state()) state.emplace_back(name, tensor.clone());
      std::reverse(state.begin(), state.end());  // by name, in any order
      b = std::make_unique<AdamW>(param_groups(resumed, 0.05));
      b->import_state(state);
    }
  }
  CHECK(straight.weight.to_vector<float>() == resumed.weight.to_vector<float>());
  CHECK(straight.bias.to_vector<float>() == resumed.bias.to_vector<float>());
}

TEST_CASE("a state that does not fit is refused whole, and all names are listed") {
  Pair model;
  AdamW optimizer(param_groups(model, 0.05));
  set_grad(model.weight, 1);
  set_grad(model.bias, 1);
  optimizer.step(lr(1e-3));
  const NamedTensors good = optimizer.export_state();
  NamedTensors bad;
  for (const auto& [name, tensor] : good) {
    if (name == "exp_avg.weight") continue;
    bad.emplace_back(name, name == "exp_avg_sq.bias" ? zeros({3}) : tensor);
  }
  bad.emplace_back("exp_avg.head", zeros({1}));
  std::string text;
  try {
    optimizer.import_state(bad);
  } catch (const IoError& error) {
    text = error.what();
  }
  CHECK(text.find("missing: exp_avg.weight") != std::string::npos);
  CHECK(text.find("wrong: exp_avg_sq.bias is f32 (3) on cpu; expected f32 (2)") != std::string::npos);
  CHECK(text.find("unexpected: exp_avg.head") != std::string::npos);
  const NamedTensors after = optimizer.export_state();
  REQUIRE(after.size() == good.size());
  for (std::size_t i = 0; i < good.size(); ++i)
    CHECK(after[i].second.is_same(good[i].second) == (good[i].first[0] == 'e'));
}

TEST_CASE("options without sense are refused") {
  Pair model;
  AdamWOptions betas;
  betas.beta1 = 1;
  CHECK_THROWS_AS(AdamW(param_groups(model, 0), betas), ValueError);
  SgdOptions nesterov;
  nesterov.nesterov = true;
  CHECK_THROWS_AS(Sgd(param_groups(model, 0), nesterov), ValueError);
  std::vector<ParamGroup> twice = param_groups(model, 0);
  twice.push_back(twice.front());
  CHECK_THROWS_AS(AdamW{twice}, ValueError);
}

TEST_CASE("what is decayed by default") {
  CHECK(default_decay("blocks.0.attn.qkv.weight", 2));
  CHECK(default_decay("patch_embed.proj.weight", 4));
  CHECK(default_decay("head.weight", 2));
  CHECK_FALSE(default_decay("blocks.0.attn.qkv.bias", 1));
  CHECK_FALSE(default_decay("blocks.0.norm1.weight", 1));
  CHECK_FALSE(default_decay("blocks.0.gamma1", 1));
  CHECK_FALSE(default_decay("cls_token", 3));
  CHECK_FALSE(default_decay("dist_token", 3));
  CHECK_FALSE(default_decay("pos_embed", 3));
  CHECK_FALSE(default_decay("layers.0.blocks.1.attn.relative_position_bias_table", 2));
  CHECK_FALSE(default_decay("blocks.0.attn.temperature", 3));
  CHECK_FALSE(default_decay("model.embeddings.position_embeddings.weight", 2));
  CHECK_FALSE(default_decay("strange.bias", 2));
  CHECK(default_decay("biases.weight", 2));
}

TEST_CASE("the groups of a vision transformer, printed with counts") {
  ModelConfig config;
  config.image_size = {32, 32};
  config.depth = 2;
  const auto model = create_model("vit_tiny", config);
  const std::vector<ParamGroup> groups = param_groups(*model, 0.05);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].name == "decay");
  CHECK(groups[0].weight_decay == 0.05);
  CHECK(groups[0].parameters.size() == 1 + 2 * 4 + 1);
  CHECK(groups[1].weight_decay == 0);
  CHECK(groups[1].parameters.size() == 2 + 1 + 2 * 8 + 2 + 1);
  const std::string text = describe(groups);
  CHECK(text.find("decay: weight decay 0.05, lr x 1, 10 tensors,") == 0);
  CHECK(text.find("blocks.*.attn.qkv.weight") != std::string::npos);
  CHECK(text.find("no_decay: weight decay 0, lr x 1, 22 tensors,") != std::string::npos);
  // A predicate of one's own: the XCiT recipe decays the temperature, for instance.
  const auto all = param_groups(*model, 0.1, [](const std::string&, int) { return true; });
  REQUIRE(all.size() == 1);
  CHECK(all[0].parameters.size() == model->named_parameters().size());
}

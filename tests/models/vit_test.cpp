// Vision transformers: names, shapes and order, counts, costs, and what a forward and a backward promise.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <thread>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/parallel.h"
#include "models/optim/adamw.h"
#include "models/vision/vit.h"
#include "models/weights.h"
#include "models/zoo.h"
#include "ops/attention.h"
#include "ops/binary.h"
#include "ops/loss.h"
#include "ops/reduce.h"
#include "ops/view.h"

using namespace polygrad;

namespace {

// A model that is quick and has every part.
ModelConfig small_config() {
  ModelConfig config;
  config.image_size = {16, 16};
  config.patch_size = {4, 8};
  config.embed_dim = 24;
  config.num_heads = 3;
  config.depth = 3;
  config.num_classes = 5;
  config.phi = {"x3"};
  return config;
}

// Path and shape of every tensor, written from the rules of timm's vision transformer.
std::vector<std::pair<std::string, std::vector<std::int64_t>>> expected_state(
    std::int64_t d, std::int64_t depth, std::int64_t hidden, std::int64_t channels, std::int64_t ph, std::int64_t pw,
    std::int64_t patches, std::int64_t classes, bool class_token, bool mean) {
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> list;
  if (class_token) list.push_back({"cls_token", {1, 1, d}});
  list.push_back({"pos_embed", {1, patches + (class_token ? 1 : 0), d}});
  list.push_back({"patch_embed.proj.weight", {d, channels, ph, pw}});
  list.push_back({"patch_embed.proj.bias", {d}});
  for (std::int64_t i = 0; i < depth; ++i) {
    const std::string block = "blocks." + std::to_string(i) + ".";
    list.push_back({block + "norm1.weight", {d}});
    list.push_back({block + "norm1.bias", {d}});
    list.push_back({block + "attn.qkv.weight", {3 * d, d}});
    list.push_back({block + "attn.qkv.bias", {3 * d}});
    list.push_back({block + "attn.proj.weight", {d, d}});
    list.push_back({block + "attn.proj.bias", {d}});
    list.push_back({block + "norm2.weight", {d}});
    list.push_back({block + "norm2.bias", {d}});
    list.push_back({block + "mlp.fc1.weight", {hidden, d}});
    list.push_back({block + "mlp.fc1.bias", {hidden}});
    list.push_back({block + "mlp.fc2.weight", {d, hidden}});
    list.push_back({block + "mlp.fc2.bias", {d}});
  }
  const std::string norm = mean ? "fc_norm" : "norm";
  list.push_back({norm + ".weight", {d}});
  list.push_back({norm + ".bias", {d}});
  list.push_back({"head.weight", {classes, d}});
  list.push_back({"head.bias", {classes}});
  return list;
}

std::vector<std::pair<std::string, std::vector<std::int64_t>>> actual_state(const Model& model) {
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> list;
  for (const auto& [path, tensor] : model.state()) list.emplace_back(path, tensor.shape().vec());
  return list;
}

// Images, drawn anew for each seed.
Tensor images(const Model& model, std::int64_t batch, std::uint64_t seed = 1) {
  Generator generator(seed);
  TensorOptions options;
  options.generator = &generator;
  const Shape s = model.input_shape();
  return randn({batch, s[0], s[1], s[2]}, options);
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  return largest;
}

// The text of the ConfigError that building `config` throws.
std::string config_error(const ModelConfig& config, const std::string& name = "vit_tiny") {
  try {
    create_model(name, config);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void check_contains(const std::string& text, const std::string& part) {
  CHECK_MESSAGE(text.find(part) != std::string::npos, "'" << text << "' does not contain '" << part << "'");
}

}  // namespace

TEST_CASE("names, shapes, order and counts of the vision transformers") {
  struct Case {
    const char* name;
    std::int64_t image, ph, pw, classes, d;
    std::uint64_t parameters;
  };
  const Case cases[] = {{"vit_tiny", 64, 4, 4, 200, 192, 5436296},
                        {"vit_tiny", 64, 8, 8, 200, 192, 5427080},
                        {"vit_tiny", 64, 16, 16, 200, 192, 5528456},
                        {"vit_tiny", 64, 16, 32, 200, 192, 5674376},
                        {"vit_tiny", 224, 16, 16, 1000, 192, 5717416},
                        {"deit_tiny_patch16_224", 224, 16, 16, 1000, 192, 5717416},
                        {"vit_small", 224, 16, 16, 1000, 384, 22050664},
                        {"deit_small", 224, 16, 16, 1000, 384, 22050664},
                        {"vit_base_patch16_224", 224, 16, 16, 1000, 768, 86567656},
                        {"deit_base", 224, 16, 16, 1000, 768, 86567656}};
  for (const Case& c : cases) {
    CAPTURE(c.name);
    CAPTURE(c.ph);
    ModelConfig config;
    config.image_size = {c.image, c.image};
    config.patch_size = {c.ph, c.pw};
    config.num_classes = c.classes;
    config.initialize = false;
    const auto model = create_model(c.name, config);
    CHECK(model->parameter_count() == c.parameters);
    CHECK(actual_state(*model) ==
          expected_state(c.d, 12, 4 * c.d, 3, c.ph, c.pw, (c.image / c.ph) * (c.image / c.pw), c.classes, true, false));
    CHECK(model->num_classes() == c.classes);
    CHECK(model->input_shape() == Shape{3, c.image, c.image});
    CHECK(model->attention_tokens(*model->attention_layers()[0]) == (c.image / c.ph) * (c.image / c.pw) + 1);
  }
}

TEST_CASE("mean pooling norms with fc_norm; a class token is optional") {
  ModelConfig config = small_config();
  config.in_channels = 1;
  config.mlp_ratio = 2;
  config.pool = "mean";
  CHECK(actual_state(*create_model("vit_tiny", config)) == expected_state(24, 3, 48, 1, 4, 8, 8, 5, true, true));
  config.class_token = false;
  CHECK(actual_state(*create_model("vit_tiny", config)) == expected_state(24, 3, 48, 1, 4, 8, 8, 5, false, true));
  config.pool.reset();  // without a class token the mean is what there is
  CHECK(resolve_model_config("vit_tiny", config).pool == "mean");
  config.class_token = true;
  CHECK(resolve_model_config("vit_tiny", config).pool == "token");
}

TEST_CASE("multiply-adds of a forward") {
  struct Case {
    const char* name;
    std::int64_t image, ph, pw, classes;
    double macs;
  };
  const Case cases[] = {{"vit_tiny", 224, 16, 16, 1000, 1.254e9}, {"vit_small", 224, 16, 16, 1000, 4.599e9},
                        {"vit_tiny", 64, 4, 4, 200, 1.671e9},     {"vit_tiny", 64, 8, 8, 200, 0.367e9},
                        {"vit_tiny", 64, 16, 16, 200, 0.0940e9},  {"vit_tiny", 64, 16, 32, 200, 0.0505e9}};
  for (const Case& c : cases) {
    ModelConfig config;
    config.image_size = {c.image, c.image};
    config.patch_size = {c.ph, c.pw};
    config.num_classes = c.classes;
    config.initialize = false;
    config.shortcuts = false;
    const auto model = create_model(c.name, config);
    CHECK(model_flops(*model, 1) == doctest::Approx(2 * c.macs).epsilon(1e-3));
    CHECK(model_flops(*model, 7) == 7 * model_flops(*model, 1));
    std::uint64_t parameters = 0;
    for (const LayerSummary& layer : model->layers(1)) parameters += layer.parameters;
    CHECK(parameters == model->parameter_count());
  }
}

TEST_CASE("the linear path is counted as what it does") {
  ModelConfig config = small_config();
  config.phi = {"x"};
  config.path = "tiled";
  config.shortcuts = false;
  const auto tiled = create_model("vit_tiny", config);
  config.path = "linear";
  const auto linear = create_model("vit_tiny", config);
  // 3 blocks of 3 heads, width 8: N x N x 8 against N x 8 x 8, both twice; N = 9.
  CHECK(model_flops(*tiled, 2) - model_flops(*linear, 2) == 2 * 2 * 3 * 3 * 2 * (9 * 9 * 8 - 9 * 8 * 8));
}

TEST_CASE("a last block for the class token alone: the same logits and gradients, fewer operations") {
  struct Case {
    const char* what;
    const char* phi;
    double dropout, drop_path, attention_dropout;
  };
  for (const Case& c : {Case{"plain", "x3", 0, 0, 0}, Case{"softmax", "softmax", 0, 0, 0}, Case{"linear", "x", 0, 0, 0},
                        Case{"drop path", "x3", 0, 0.5, 0}, Case{"every dropout", "gelu", 0.3, 0.3, 0.3}}) {
    CAPTURE(c.what);
    ModelConfig config = small_config();
    config.phi = {c.phi};
    config.dropout = c.dropout;
    config.drop_path = c.drop_path;
    config.attention_dropout = c.attention_dropout;
    const auto cut = create_model("vit_tiny", config);
    config.shortcuts = false;
    const auto whole = create_model("vit_tiny", config);
    std::vector<std::vector<double>> results[2];
    for (const auto& [model, result] : {std::pair{cut.get(), &results[0]}, std::pair{whole.get(), &results[1]}}) {
      model->to(DType::f64);
      ForwardContext context;
      context.training = true;
      context.seed = 5;
      context.step = 2;
      const Tensor logits = model->forward(images(*model, 6).to(DType::f64), context);
      cross_entropy(logits, Tensor::from_vector(std::vector<std::int64_t>{0, 1, 2, 3, 4, 0})).backward();
      result->push_back(logits.to_vector<double>());
      for (const auto& [path, tensor] : model->named_parameters()) result->push_back(tensor.grad().to_vector<double>());
    }
    REQUIRE(results[0].size() == results[1].size());
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      CAPTURE(i);
      for (std::size_t j = 0; j < results[0][i].size(); ++j) {
        CHECK(results[0][i][j] == doctest::Approx(results[1][i][j]).epsilon(1e-9).scale(1e-3));
      }
    }
  }
  ModelConfig config = small_config();
  const double shorter = model_flops(*create_model("vit_tiny", config), 1);
  config.shortcuts = false;
  // Of 9 tokens 8 leave out the query, the scores and their use, the projection and the MLP; dim 24, hidden 96.
  const double left_out = 2 * 8 * (24 * 24 + 2 * 9 * 24 + 24 * 24 + 2 * 24 * 96);
  CHECK(model_flops(*create_model("vit_tiny", config), 1) - shorter == left_out);
}

TEST_CASE("a fresh classifier's loss is close to ln K") {
  for (const std::int64_t classes : {10, 200}) {
    for (const char* phi : {"softmax", "x3"}) {
      ModelConfig config;
      config.image_size = {32, 32};
      config.patch_size = {8, 8};
      config.depth = 4;
      config.num_classes = classes;
      config.phi = {phi};
      const auto model = create_model("vit_tiny", config);
      std::vector<std::int64_t> labels(16);
      std::iota(labels.begin(), labels.end(), 0);
      for (std::int64_t& label : labels) label %= classes;
      const NoGradGuard no_grad;
      const double loss = cross_entropy(model->forward(images(*model, 16)), Tensor::from_vector(labels)).item<double>();
      CHECK(loss == doctest::Approx(std::log(static_cast<double>(classes))).epsilon(0.05));
    }
  }
}

TEST_CASE("every parameter gets a gradient, and it is the loss's slope") {
  for (const bool mean_pool : {false, true}) {
    for (const char* phi : {"softmax", "x3", "gelu"}) {
      CAPTURE(phi);
      ModelConfig config = small_config();
      config.phi = {phi};
      config.pool = mean_pool ? "mean" : "token";
      const auto model = create_model("vit_tiny", config);
      // Larger weights than a fresh model's, so that no part of the function is all but flat.
      Generator generator(9);
      TensorOptions random;
      random.generator = &generator;
      {
        const NoGradGuard no_grad;
        for (auto& [path, tensor] : model->named_parameters()) {
          Tensor parameter = tensor;
          parameter.copy_(add(parameter, mul(randn(parameter.shape(), random), 0.2)));
        }
      }
      model->to(DType::f64);
      const Tensor input = images(*model, 3).to(DType::f64);
      const Tensor labels = Tensor::from_vector<std::int64_t>({0, 3, 1});
      const auto loss = [&] { return cross_entropy(model->forward(input), labels); };
      loss().backward();

      // Each parameter along a random direction of its own: (L(p + h u) - L(p - h u)) / 2h against <gradient, u>.
      const double h = 1e-5;
      for (auto& [path, tensor] : model->named_parameters()) {
        CAPTURE(path);
        REQUIRE(tensor.grad().defined());
        const NoGradGuard no_grad;
        Tensor parameter = tensor;
        const Tensor direction = randn(parameter.shape(), random).to(DType::f64), start = parameter.clone();
        const double slope = sum(mul(parameter.grad(), direction)).item<double>();
        parameter.copy_(add(start, mul(direction, h)));
        const double above = loss().item<double>();
        parameter.copy_(sub(start, mul(direction, h)));
        const double below = loss().item<double>();
        parameter.copy_(start);
        const double numeric = (above - below) / (2 * h);
        CHECK(std::abs(numeric - slope) <= 1e-6 * std::max(1.0, std::abs(slope)));
        // softmax does not see a shift of all keys, so only a part of the qkv bias matters; no gradient is all zero.
        CHECK(std::abs(slope) > 1e-9);
      }
    }
  }
}

TEST_CASE("in evaluation a sample's logits do not depend on its batch") {
  const auto model = create_model("vit_tiny", small_config());
  const NoGradGuard no_grad;
  const Tensor batch = images(*model, 7);
  const std::vector<float> together = model->forward(batch).to_vector<float>();
  for (std::int64_t i = 0; i < 7; ++i) {
    const std::vector<float> alone = model->forward(slice(batch, 0, i, i + 1)).to_vector<float>();
    const std::vector<float> row(together.begin() + i * 5, together.begin() + (i + 1) * 5);
    CHECK(largest_difference(alone, row) <= 1e-6);
  }
}

TEST_CASE("one model in four threads: the same bits as alone") {
  const auto model = create_model("vit_tiny", small_config());
  std::vector<std::vector<float>> alone(4), at_once(4);
  std::vector<Tensor> inputs;
  for (std::uint64_t i = 0; i < 4; ++i) inputs.push_back(images(*model, 5, i));
  const auto run = [&](std::size_t i) {
    const NoGradGuard no_grad;
    return model->forward(inputs[i]).to_vector<float>();
  };
  for (std::size_t i = 0; i < 4; ++i) alone[i] = run(i);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int repeat = 0; repeat < 10; ++repeat) at_once[i] = run(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < 4; ++i) CHECK(at_once[i] == alone[i]);
}

TEST_CASE("two models trained in two threads: the same bits as one after the other") {
  const auto train = [](std::uint64_t seed) {
    ModelConfig config = small_config();
    config.seed = seed;
    config.dropout = 0.1;
    config.drop_path = 0.2;
    const auto model = create_model("vit_tiny", config);
    AdamW optimizer(param_groups(*model, 0.05));
    const Tensor batch = images(*model, 6, seed), labels = Tensor::from_vector<std::int64_t>({0, 1, 2, 3, 4, 0});
    ForwardContext context;
    context.training = true;
    context.seed = seed;
    for (context.step = 0; context.step < 5; ++context.step) {
      optimizer.zero_grad();
      cross_entropy(model->forward(batch, context), labels).backward();
      optimizer.step({1e-3, std::nullopt});
    }
    return fingerprint(model->state());
  };
  const std::string first = train(1), second = train(2);
  std::string first_at_once, second_at_once;
  std::thread other([&] { second_at_once = train(2); });
  first_at_once = train(1);
  other.join();
  CHECK(first_at_once == first);
  CHECK(second_at_once == second);
  CHECK(first != second);
  const NumThreadsGuard one(1);
  CHECK(train(1) == first);
}

TEST_CASE("dropout belongs to the sample, the step and the layer: micro-batches draw what the whole batch draws") {
  ModelConfig config = small_config();
  config.dropout = 0.2;
  config.drop_path = 0.3;
  config.attention_dropout = 0.2;
  const auto model = create_model("vit_tiny", config);
  const Tensor batch = images(*model, 10);
  ForwardContext context;
  context.training = true;
  context.seed = 5;
  context.step = 3;
  const std::vector<float> whole = model->forward(batch, context).to_vector<float>();
  std::vector<float> parts;
  for (const auto& [begin, end] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 4}, {4, 8}, {8, 10}}) {
    context.first_sample = begin;
    const std::vector<float> part = model->forward(slice(batch, 0, begin, end), context).to_vector<float>();
    parts.insert(parts.end(), part.begin(), part.end());
  }
  CHECK(largest_difference(whole, parts) <= 1e-5);
  context.first_sample = 0;
  CHECK(model->forward(batch, context).to_vector<float>() == whole);
  context.step = 4;
  CHECK(largest_difference(model->forward(batch, context).to_vector<float>(), whole) > 1e-3);
  // Evaluation, in between and after, draws nothing.
  const std::vector<float> evaluated = model->forward(batch).to_vector<float>();
  ModelConfig plain = small_config();
  CHECK(create_model("vit_tiny", plain)->forward(batch).to_vector<float>() == evaluated);
}

TEST_CASE("drop path: per sample, kept ones scaled, linear over the depth") {
  CHECK(drop_path_rate(0.3, 0, 12) == 0);
  CHECK(drop_path_rate(0.3, 11, 12) == 0.3);
  CHECK(drop_path_rate(0.3, 4, 9) == doctest::Approx(0.15));
  CHECK(drop_path_rate(0.3, 0, 1) == 0);
  CHECK_THROWS_AS(DropPath(1.0), ValueError);
  CHECK_THROWS_AS(Dropout(-0.1), ValueError);

  DropPath layer(0.2);
  initialize(layer, 0);
  const std::int64_t samples = 100000;
  const Tensor x = zeros({samples, 2}), branch = ones({samples, 2});
  ForwardContext training;
  training.training = true;
  const std::vector<float> y = layer.add(x, branch, training).to_vector<float>();
  double sum = 0;
  for (std::int64_t i = 0; i < samples; ++i) {
    REQUIRE((y[2 * i] == 0 || y[2 * i] == doctest::Approx(1.25)));
    REQUIRE(y[2 * i] == y[2 * i + 1]);
    sum += y[2 * i];
  }
  CHECK(sum / static_cast<double>(samples) == doctest::Approx(1).epsilon(0.01));
  CHECK(layer.add(x, branch).to_vector<float>() == branch.to_vector<float>());
  CHECK(layer.add(x, branch, training).to_vector<float>() == y);  // evaluation in between left nothing behind
}

TEST_CASE("one activation for all layers, or one for each") {
  ModelConfig config = small_config();
  config.phi = {"x3", "softmax", "x"};
  const auto model = create_model("vit_tiny", config);
  const auto layers = model->attention_layers();
  REQUIRE(layers.size() == 3);
  CHECK(to_string(layers[0]->config().phi) == "x3");
  CHECK(layers[0]->config().divisor == doctest::Approx(std::sqrt(8.0)));  // 8 patches; the class token does not count
  CHECK(layers[1]->config().phi.is_softmax());
  CHECK(layers[1]->config().divisor == 1);
  CHECK(layers[2]->config().layer == 3);
  CHECK(layers[2]->path() == "blocks.2.attn");
  const std::string report = attention_report(*model);
  check_contains(report, "attention layer 1: 3 heads of 8, 9 tokens, phi x3, divisor 2.82843, path tiled (");
  check_contains(report, "attention layer 2: 3 heads of 8, 9 tokens, phi softmax, path ");
  config.phi = {"x3"};
  check_contains(attention_report(*create_model("vit_tiny", config)), "attention layers 1-3: ");
  check_contains(summary_table(*model, 2), "blocks.2.mlp.fc1");
}

TEST_CASE("the table of parameters shows how each kind starts") {
  CHECK(parameter_kind("blocks.10.mlp.fc1.weight") == "blocks.*.mlp.fc1.weight");
  CHECK(parameter_kind("head.bias") == "head.bias");
  CHECK(parameter_kind("layers.0.blocks.1.norm1.bias") == "layers.*.blocks.*.norm1.bias");
  const std::string table = parameter_table(*create_model("vit_tiny", small_config()));
  check_contains(
      table, "blocks.*.norm1.weight              3         72            1            0            1            1\n");
  check_contains(table, "blocks.*.attn.qkv.weight           3       5184 ");
}

TEST_CASE("how the divisor is written") {
  const Activation x3 = parse_activation("x3"), gelu = parse_activation("gelu"), softmax = Activation::softmax();
  CHECK(resolve_divisor("auto", x3, 256) == 16);
  CHECK(resolve_divisor("auto", parse_activation("x^7"), 196) == 14);
  CHECK(resolve_divisor("auto", gelu, 256) == 1);
  CHECK(resolve_divisor("sqrt_n", gelu, 256) == 16);
  CHECK(resolve_divisor("n", x3, 256) == 256);
  CHECK(resolve_divisor("14", x3, 256) == 14);
  CHECK(resolve_divisor("2.5e1", gelu, 256) == 25);
  CHECK(resolve_divisor("14", softmax, 256) == 1);
  for (const char* text : {"", "sqrt", "0", "-3", "1 6", "nan", "inf", "16x"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(resolve_divisor(text, x3, 256), ConfigError);
    CHECK_THROWS_AS(resolve_divisor(text, softmax, 256), ConfigError);
  }
}

TEST_CASE("an observer sees each attention's input, queries and keys, and changes nothing") {
  struct Recorder : AttentionObserver {
    void observe(const AttentionCall& call) override {
      paths.push_back(call.layer.path());
      CHECK(call.x.shape() == Shape{2, 9, 24});
      CHECK(call.q.shape() == Shape{2, 3, 9, 8});
      CHECK(call.k.shape() == Shape{2, 3, 9, 8});
      CHECK_FALSE(call.q.requires_grad());
      CHECK(call.params.divisor == doctest::Approx(std::sqrt(8.0)));
      CHECK(attention_map(call.q, call.k, call.params).shape() == Shape{2, 3, 9, 9});
    }
    std::vector<std::string> paths;
  };
  const auto model = create_model("vit_tiny", small_config());
  const Tensor batch = images(*model, 2);
  const std::vector<float> plain = model->forward(batch).to_vector<float>();
  Recorder recorder;
  {
    const AttentionObserverGuard guard(recorder);
    CHECK(model->forward(batch).to_vector<float>() == plain);
  }
  model->forward(batch);
  CHECK(recorder.paths == std::vector<std::string>{"blocks.0.attn", "blocks.1.attn", "blocks.2.attn"});
}

TEST_CASE("the path changes nothing but rounding") {
  ModelConfig config = small_config();
  config.phi = {"x"};
  std::vector<std::vector<float>> results;
  for (const char* path : {"auto", "tiled", "linear", "materialised"}) {
    config.path = path;
    const auto model = create_model("vit_tiny", config);
    results.push_back(model->forward(images(*model, 3)).to_vector<float>());
  }
  for (const auto& result : results) CHECK(largest_difference(result, results[0]) <= 1e-5);
}

TEST_CASE("what can't be built says which key, and which values") {
  ModelConfig config = small_config();
  config.num_heads = 5;
  check_contains(config_error(config),
                 "[model.num_heads] the heads do not divide the width: embed_dim 24, num_heads 5");
  config = small_config();
  config.patch_size = {5, 8};
  check_contains(config_error(config), "[model.patch_size]");
  check_contains(config_error(config), "image 16x16, patch 5x8");
  config.patch_size = {0, 8};
  check_contains(config_error(config), "[model.patch_size] expected at least 1, got 0");
  config = small_config();
  config.phi = {"x3", "x"};
  check_contains(config_error(config),
                 "[attention.phi] expected one activation, or one for each of the 3 layers, got 2");
  config.phi = {"x10"};
  check_contains(config_error(config), "x10");
  config = small_config();
  config.class_token = false;
  config.pool = "token";
  check_contains(config_error(config), "[model.pool]");
  config = small_config();
  config.pool = "max";
  check_contains(config_error(config), "unknown pool 'max'; expected token or mean");
  config = small_config();
  config.path = "linear";
  check_contains(config_error(config), "[attention.path]");  // x3 has no linear path
  config.phi = {"x"};
  config.attention_dropout = 0.1;
  check_contains(config_error(config), "[attention.path]");
  config = small_config();
  config.scale = "sqrt";
  check_contains(config_error(config), "[attention.scale]");
  config = small_config();
  config.drop_path = 1;
  check_contains(config_error(config), "[model.drop_path]");
  config = small_config();
  config.num_classes = 0;
  check_contains(config_error(config), "[model.num_classes]");
  check_contains(config_error(small_config(), "vit_huge"),
                 "unknown model 'vit_huge'; expected one of vit_tiny, vit_small");
  CHECK(list_models().size() == 11);
}

TEST_CASE("images of the wrong shape are refused with both shapes") {
  const auto model = create_model("vit_tiny", small_config());
  std::string text;
  try {
    model->forward(zeros({2, 3, 16, 24}));
  } catch (const ShapeError& error) {
    text = error.what();
  }
  check_contains(text, "[patch_embed] images of the wrong shape: expected (batch, 3, 16, 16), got (2, 3, 16, 24)");
}

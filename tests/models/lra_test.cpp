// The Long Range Arena's transformer: padding does not change a result, towers are independent, what can't be is said.
#include "models/sequence/lra.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "models/zoo.h"
#include "ops/attention.h"
#include "ops/loss.h"

using namespace polygrad;

namespace {

constexpr std::int64_t kLengths[] = {37, 5};  // of the two samples

LraConfig small(Activation phi = Activation::power(3), std::int64_t towers = 1) {
  LraConfig config;
  config.vocabulary = 20;
  config.positions = 2048;
  config.length = 1100;
  config.towers = towers;
  config.embed_dim = 16;
  config.num_classes = 4;
  config.phi = {phi};
  config.scale = "14";
  return config;
}

std::unique_ptr<Lra> build(const LraConfig& config) {
  auto model = std::make_unique<Lra>(config);
  initialize(*model, 5);
  return model;
}

// The samples' ids, each tower its own, filled up to `length` with `filler`.
Tensor tokens(std::int64_t towers, std::int64_t length, std::uint64_t seed = 1, std::int64_t filler = -1) {
  std::vector<std::int64_t> ids;
  for (std::int64_t sample = 0; sample < 2; ++sample) {
    for (std::int64_t tower = 0; tower < towers; ++tower) {
      Generator generator(derive_seed(seed, static_cast<std::uint64_t>(sample), static_cast<std::uint64_t>(tower)));
      const std::int64_t own = kLengths[sample] + tower;
      for (std::int64_t i = 0; i < length; ++i) ids.push_back(i < own ? generator.integer(1, 20) : filler);
    }
  }
  return Tensor::from_vector(ids, {2, towers, length});
}

struct Result {
  std::vector<float> logits;
  std::vector<std::vector<float>> gradients;
};

Result run(const Lra& model, const Tensor& input, const ForwardContext& context = {}) {
  const auto parameters = model.named_parameters();
  for (const auto& [path, parameter] : parameters) Tensor(parameter).zero_grad();
  const Tensor logits = model.forward(input, context);
  cross_entropy(logits, Tensor::from_vector(std::vector<std::int64_t>{1, 3})).backward();
  Result result{logits.to_vector<float>(), {}};
  for (const auto& [path, parameter] : parameters) {
    REQUIRE_MESSAGE(parameter.grad().defined(), path);
    result.gradients.push_back(parameter.grad().to_vector<float>());
  }
  return result;
}

float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  float most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= most)) most = std::isnan(difference) ? INFINITY : difference;
  }
  return most;
}

// Logits within 1e-5; a gradient within 1e-5 of its tensor's largest value.
void check_same(const Result& a, const Result& b, float tolerance = 1e-5f) {
  CHECK(largest_difference(a.logits, b.logits) <= tolerance);
  REQUIRE(a.gradients.size() == b.gradients.size());
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    float scale = 1e-3f;
    for (const float value : a.gradients[i]) scale = std::max(scale, std::abs(value));
    CAPTURE(i);
    CHECK(largest_difference(a.gradients[i], b.gradients[i]) <= tolerance * scale);
  }
}

}  // namespace

TEST_CASE("padding changes neither logits nor gradients, for every activation") {
  for (const Activation phi : all_activations()) {
    CAPTURE(to_string(phi));
    const auto model = build(small(phi));
    const Result bare = run(*model, tokens(1, kLengths[0]));
    for (const std::int64_t padding : {1, 7, 127, 128, 129, 511, 1000}) {
      CAPTURE(padding);
      check_same(bare, run(*model, tokens(1, kLengths[0] + padding)));
    }
  }
}

TEST_CASE("padding changes nothing of a pair, nor in training, where every dropout acts") {
  for (const char* phi : {"softmax", "x3", "x"}) {
    CAPTURE(phi);
    LraConfig config = small(parse_activation(phi), 2);
    config.dropout = 0.3;
    config.attention_dropout = 0.2;
    const auto model = build(config);
    const ForwardContext training{.training = true, .seed = 9, .step = 4, .first_sample = 6};
    for (const ForwardContext& context : {ForwardContext{}, training}) {
      const Result bare = run(*model, tokens(2, kLengths[0] + 1), context);
      for (const std::int64_t padding : {1, 129, 600}) {
        CAPTURE(padding);
        check_same(bare, run(*model, tokens(2, kLengths[0] + 1 + padding), context));
      }
    }
    CHECK(largest_difference(run(*model, tokens(2, 40)).logits, run(*model, tokens(2, 40), training).logits) > 1e-3f);
  }
}

TEST_CASE("a sample's dropout masks do not depend on the micro-batch it comes in") {
  LraConfig config = small(Activation::power(3), 2);
  config.dropout = 0.3;
  config.attention_dropout = 0.2;
  const auto model = build(config);
  const Tensor both = tokens(2, 60);
  const std::vector<std::int64_t> ids = both.to_vector<std::int64_t>();
  const Tensor second = Tensor::from_vector(std::vector<std::int64_t>(ids.begin() + 120, ids.end()), {1, 2, 60});
  const auto logits = model->forward(both, {.training = true, .seed = 9, .step = 4}).to_vector<float>();
  const auto alone = model->forward(second, {.training = true, .seed = 9, .step = 4, .first_sample = 1});
  CHECK(largest_difference(std::vector<float>(logits.begin() + 4, logits.end()), alone.to_vector<float>()) <= 1e-5f);
}

TEST_CASE("a tower's output does not depend on the other document") {
  const auto model = build(small(Activation::power(3), 2));
  const auto encode = [&](std::uint64_t other) {
    const std::vector<std::int64_t> a = tokens(2, 50).to_vector<std::int64_t>();
    const std::vector<std::int64_t> b = tokens(2, 50, other).to_vector<std::int64_t>();
    std::vector<std::int64_t> rows(a.begin(), a.begin() + 50);
    rows.insert(rows.end(), b.begin() + 50, b.begin() + 100);
    return model->encode(model->prepare(Tensor::from_vector(rows, {2, 50}))).to_vector<float>();
  };
  const auto one = encode(1), two = encode(2);
  CHECK(std::equal(one.begin(), one.begin() + 16, two.begin()));
  CHECK(largest_difference(one, two) > 1e-4f);
}

TEST_CASE("the head of a pair sees both documents, and in which order") {
  const auto model = build(small(Activation::power(3), 2));
  std::vector<std::int64_t> ids = tokens(2, 50).to_vector<std::int64_t>();
  const auto straight = model->forward(Tensor::from_vector(ids, {2, 2, 50})).to_vector<float>();
  for (auto row = ids.begin(); row != ids.end(); row += 100) std::swap_ranges(row, row + 50, row + 50);
  const auto swapped = model->forward(Tensor::from_vector(ids, {2, 2, 50})).to_vector<float>();
  CHECK(largest_difference(straight, swapped) > 1e-4f);
}

TEST_CASE("a sample without any token gives finite logits and gradients, those of the others unchanged") {
  for (const char* phi : {"softmax", "x3", "exp"}) {
    CAPTURE(phi);
    const auto model = build(small(parse_activation(phi)));
    std::vector<std::int64_t> ids = tokens(1, 40).to_vector<std::int64_t>();
    const auto before = run(*model, Tensor::from_vector(ids, {2, 1, 40})).logits;
    std::fill(ids.begin() + 40, ids.end(), -1);
    const Result result = run(*model, Tensor::from_vector(ids, {2, 1, 40}));
    CHECK(largest_difference(std::vector<float>(before.begin(), before.begin() + 4),
                             std::vector<float>(result.logits.begin(), result.logits.begin() + 4)) <= 1e-6f);
    for (const float x : result.logits) CHECK(std::isfinite(x));
    for (const auto& gradient : result.gradients) {
      CHECK(std::all_of(gradient.begin(), gradient.end(), [](float x) { return std::isfinite(x); }));
    }
  }
}

TEST_CASE("the reference's habits: id 0 hidden, and the mean over the padded length") {
  LraConfig config = small();
  const auto plain = build(config);
  config.mask_zero = true;
  const auto hiding = build(config);
  config.pool_over_padding = true;
  const auto padded = build(config);
  const Tensor zeros = tokens(1, 50, 1, 0), none = tokens(1, 50, 1, -1);
  const auto same = [](const Tensor& a, const Tensor& b) {
    return largest_difference(a.to_vector<float>(), b.to_vector<float>()) <= 1e-6f;
  };
  CHECK(same(hiding->forward(zeros), plain->forward(none)));
  CHECK(!same(plain->forward(zeros), plain->forward(none)));  // 0 is a token like any other
  // Each token's share is 1 / 1100 instead of 1 / 37, whatever the batch is padded to.
  const auto share = [](const Lra& model, const Tensor& rows) { return model.prepare(rows).shares.to_vector<float>(); };
  const Tensor rows = Tensor::from_vector(none.to_vector<std::int64_t>(), {2, 50});
  CHECK(share(*plain, rows)[36] == 1.0f / 37);
  CHECK(share(*plain, rows)[37] == 0);
  CHECK(share(*padded, rows)[36] == 1.0f / 1100);
  CHECK(share(*padded, rows)[50 + 4] == 1.0f / 1100);
  CHECK(!same(padded->forward(none), hiding->forward(none)));
}

TEST_CASE("a batch without padding needs no mask") {
  const auto model = build(small());
  CHECK(!model->prepare(Tensor::from_vector(std::vector<std::int64_t>{1, 0, 3, 4}, {2, 2})).mask.visible.defined());
  CHECK(model->prepare(Tensor::from_vector(std::vector<std::int64_t>{1, 0, 3, -1}, {2, 2})).mask.visible.defined());
}

TEST_CASE("separate projections compute what a packed one computes") {
  AttentionConfig config;
  config.phi = Activation::power(3);
  config.divisor = 3;
  Attention packed(8, 2, config);
  config.separate = true;
  Attention separate(8, 2, config);
  initialize(packed, 1);
  initialize(separate, 2);
  std::vector<float> weights, biases;
  for (const char* name : {"W_q", "W_k", "W_v"}) {
    const auto weight = separate.find(std::string(name) + ".weight").to_vector<float>();
    const auto bias = separate.find(std::string(name) + ".bias").to_vector<float>();
    weights.insert(weights.end(), weight.begin(), weight.end());
    biases.insert(biases.end(), bias.begin(), bias.end());
  }
  {
    const NoGradGuard no_grad;
    packed.find("qkv.weight").copy_(Tensor::from_vector(weights, {24, 8}));
    packed.find("qkv.bias").copy_(Tensor::from_vector(biases, {24}));
    packed.find("proj.weight").copy_(separate.find("ff.weight"));
    packed.find("proj.bias").copy_(separate.find("ff.bias"));
  }
  Generator generator(3);
  const Tensor x = randn({2, 7, 8}, {.generator = &generator});
  CHECK(packed.forward(x).to_vector<float>() == separate.forward(x).to_vector<float>());
}

TEST_CASE("what can't be built or read is said") {
  const auto text_of = [](const auto& action) -> std::string {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto built = [&](auto change) {
    return text_of([&] {
      LraConfig config = small();
      change(config);
      build(config);
    });
  };
  CHECK(built([](LraConfig& c) { c.length = 4000; }).find("[data.text_length] 4000 tokens") == 0);
  CHECK(built([](LraConfig& c) { c.num_heads = 3; }).find("[model.num_heads]") == 0);
  CHECK(built([](LraConfig& c) { c.path = AttentionPath::linear; }).find("[attention.path]") == 0);
  CHECK(built([](LraConfig& c) { c.dropout = 1; }).find("[model.dropout]") == 0);
  const auto model = build(small());
  const auto read = [&](const std::vector<std::int64_t>& ids, const Shape& shape) {
    return text_of([&] { model->forward(Tensor::from_vector(ids, shape)); });
  };
  CHECK(read({1, 2}, {1, 2}).find("[lra] tokens are i64 (1, 2) on cpu; expected i64 (batch, 1 towers, length)") == 0);
  CHECK(read({1, 2}, {1, 2, 1}).find("[lra] tokens are") == 0);
  CHECK(read({1, 20}, {1, 1, 2}).find("= 20; expected 0 <= value < 20") != std::string::npos);
  CHECK(read(std::vector<std::int64_t>(2049, 1), {1, 1, 2049}).find("2049 tokens; expected at most 2048") !=
        std::string::npos);
}

TEST_CASE("the zoo's presets: tables, lengths and sqrt_n") {
  ModelConfig config;
  config.phi = {"x3"};
  const auto text = create_model("lra_text", config);
  CHECK(text->find("model.embeddings.position_embeddings.weight").shape() == Shape{4096, 64});
  CHECK(text->attention_layers()[0]->config().divisor == 64);  // sqrt(4096)
  config.text_length = 1024;
  const auto cut = create_model("lra_text", config);
  CHECK(cut->find("model.embeddings.position_embeddings.weight").shape() == Shape{4096, 64});
  CHECK(cut->attention_layers()[0]->config().divisor == 32);
  config.text_length = 65536;
  CHECK(create_model("lra_text", config)->find("model.embeddings.position_embeddings.weight").size(0) == 65536);
  CHECK(create_model("lra_retrieval")->input_shape() == Shape{2, 4096});
  CHECK(create_model("lra_listops")->num_classes() == 10);
  CHECK(create_model("lra_pathfinder32")->input_shape() == Shape{1, 1024});
}

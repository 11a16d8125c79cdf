// Weights: a file loads whole and by name, or not at all with the whole report.
#include <doctest/doctest.h>

#include <utility>

#include "engine/error.h"
#include "engine/factory.h"
#include "models/weights.h"
#include "models/zoo.h"
#include "ops/copy.h"
#include "ops/view.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;

namespace {

std::unique_ptr<Model> small_model(std::uint64_t seed, std::int64_t classes = 5) {
  ModelConfig config;
  config.image_size = {16, 16};
  config.patch_size = {8, 8};
  config.embed_dim = 16;
  config.num_heads = 2;
  config.depth = 2;
  config.num_classes = classes;
  config.seed = seed;
  return create_model("vit_tiny", config);
}

// Loads `state` and expects it to fail, with the model unchanged. The text of the error.
std::string refusal(Module& model, const NamedTensors& state, const LoadOptions& options = {}) {
  const std::string before = fingerprint(model.state());
  std::string text = "nothing was thrown";
  try {
    load_state(model, state, options, "given.safetensors");
  } catch (const IoError& error) {
    text = error.what();
  }
  CHECK(fingerprint(model.state()) == before);
  return text;
}

void check_contains(const std::string& text, const std::string& part) {
  CHECK_MESSAGE(text.find(part) != std::string::npos, "'" << text << "' does not contain '" << part << "'");
}

NamedTensors with_prefix(const NamedTensors& state, const std::string& prefix) {
  NamedTensors result;
  for (const auto& [name, tensor] : state) result.emplace_back(prefix + name, tensor);
  return result;
}

}  // namespace

TEST_CASE("saved and loaded: the same bits, in the model's order") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "weights.safetensors";
  const auto saved = small_model(1), loaded = small_model(2);
  save_weights(path, *saved, {{"format", "pt"}});
  const LoadReport report = load_weights(*loaded, path);
  CHECK(report.loaded == saved->state().size());
  CHECK(report.kept.empty());
  CHECK(fingerprint(loaded->state()) == fingerprint(saved->state()));
  CHECK(loaded->find("head.weight").requires_grad());
  const SafetensorsFile file(path);
  const NamedTensors state = saved->state();
  REQUIRE(file.entries().size() == state.size());
  for (std::size_t i = 0; i < state.size(); ++i) CHECK(file.entries()[i].name == state[i].first);
}

TEST_CASE("a file without one bias, with a foreign tensor and another shape: one error with all names") {
  const auto source = small_model(1), model = small_model(2);
  NamedTensors state;
  for (const auto& [name, tensor] : source->state()) {
    if (name == "blocks.1.attn.qkv.bias") continue;
    state.emplace_back(name, name == "pos_embed" ? zeros({1, 10, 16}) : tensor);
  }
  state.emplace_back("head_dist.weight", zeros({5, 16}));
  const std::string text = refusal(*model, state);
  check_contains(text, "[load_weights] given.safetensors does not fit the model; nothing was loaded");
  check_contains(text, "nothing was loaded;\n  missing (1):");  // readable on one line, too
  check_contains(text, "missing (1):\n    blocks.1.attn.qkv.bias;\n  unexpected");
  check_contains(text, "unexpected (1):\n    head_dist.weight");
  check_contains(text, "of another shape (1):\n    pos_embed: the model has (1, 5, 16), the file (1, 10, 16)");
  CHECK(text.find("hint") == std::string::npos);
}

TEST_CASE("a prefix is found, named, and taken off when asked") {
  const auto source = small_model(1), model = small_model(2);
  const NamedTensors state = with_prefix(source->state(), "module.");
  const std::string text = refusal(*model, state);
  check_contains(text, "hint: every unexpected name begins with \"module.\"");
  check_contains(text, "missing (32):");
  check_contains(text, ";\n    module.head.bias");
  check_contains(text, "unexpected (32):");
  check_contains(text, "module.head.bias");
  LoadOptions options;
  options.strip_prefix = "module.";
  CHECK(load_state(*model, state, options).loaded == 32);
  CHECK(fingerprint(model->state()) == fingerprint(source->state()));
  NamedTensors mixed = state;
  mixed.emplace_back("epoch", zeros({1}));
  check_contains(refusal(*model, mixed, options), "unexpected (1):\n    epoch");
}

TEST_CASE("another head is refused, unless it is allowed by name") {
  const auto source = small_model(1, 9), model = small_model(2, 5);
  const std::string text = refusal(*model, source->state());
  check_contains(text, "of another shape (2):");
  check_contains(text, "head.weight: the model has (5, 16), the file (9, 16)");
  check_contains(text, "head.bias: the model has (5), the file (9)");
  const std::vector<float> head = model->find("head.weight").to_vector<float>();
  LoadOptions options;
  options.allow_other_head = "head";
  const LoadReport report = load_state(*model, source->state(), options);
  CHECK(report.kept == std::vector<std::string>{"head.weight", "head.bias"});
  CHECK(report.loaded == 30);
  CHECK(model->find("head.weight").to_vector<float>() == head);
  CHECK(model->find("norm.weight").to_vector<float>() == source->find("norm.weight").to_vector<float>());
  // Nothing else may differ under its cover.
  NamedTensors short_state = source->state();
  short_state.erase(short_state.begin());
  check_contains(refusal(*model, short_state, options), "missing (1):\n    cls_token");
}

TEST_CASE("a foreign file through a conversion: separate q, k, v put together") {
  const auto source = small_model(1), model = small_model(2);
  NamedTensors foreign;
  for (const auto& [name, tensor] : source->state()) {
    const std::size_t at = name.find("attn.qkv");
    if (at == std::string::npos) {
      foreign.emplace_back(name, tensor);
      continue;
    }
    const char* const parts[] = {"query", "key", "value"};
    for (int i = 0; i < 3; ++i) {
      foreign.emplace_back(name.substr(0, at) + "attention." + parts[i] + name.substr(at + 8),
                           slice(tensor.detach(), 0, 16 * i, 16 * (i + 1)));
    }
  }
  LoadOptions options;
  options.convert = [](std::vector<WeightSource> sources) {
    std::vector<WeightSource> result;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const std::size_t at = sources[i].name.find("attention.query");
      if (at == std::string::npos) {
        result.push_back(std::move(sources[i]));
        continue;
      }
      Shape shape = sources[i].shape;
      shape[0] *= 3;
      const std::string name = sources[i].name.substr(0, at) + "attn.qkv" + sources[i].name.substr(at + 15);
      result.push_back({name, shape, [q = sources[i].load, k = sources[i + 1].load, v = sources[i + 2].load] {
                          return cat({q(), k(), v()}, 0);
                        }});
      i += 2;
    }
    return result;
  };
  check_contains(refusal(*model, foreign), "blocks.0.attention.query.weight");
  CHECK(load_state(*model, foreign, options).loaded == 32);
  CHECK(fingerprint(model->state()) == fingerprint(source->state()));
}

TEST_CASE("16-bit files load, integers don't") {
  const auto source = small_model(1), model = small_model(2);
  NamedTensors half;
  for (const auto& [name, tensor] : source->state()) half.emplace_back(name, tensor.detach().to(DType::bf16));
  CHECK(load_state(*model, half).loaded == 32);
  CHECK(model->find("norm.weight").dtype() == DType::f32);
  CHECK(model->find("head.weight").to_vector<float>() ==
        source->find("head.weight").detach().to(DType::bf16).to(DType::f32).to_vector<float>());
  NamedTensors integer = source->state();
  integer.back().second = zeros({5}).to(DType::i64);
  check_contains(refusal(*model, integer), "head.bias is i64 (5) on cpu");
}

TEST_CASE("a file that can't be read changes nothing") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "weights.safetensors";
  const auto model = small_model(2);
  const std::string before = fingerprint(model->state());
  CHECK_THROWS_AS(load_weights(*model, path), IoError);
  save_weights(path, *small_model(1));
  const std::string bytes = testing::read_bytes(path);
  testing::write_bytes(path, bytes.substr(0, bytes.size() / 2));
  CHECK_THROWS_AS(load_weights(*model, path), IoError);
  CHECK(fingerprint(model->state()) == before);
}

TEST_CASE("a file of a dtype without a counterpart is a file that can't be read") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "weights.safetensors";
  const auto model = small_model(2);
  const std::string before = fingerprint(model->state());
  for (const auto& [dtype, bytes] : {std::pair("F8_E4M3", 1), std::pair("U64", 8)}) {
    std::string header = "{";
    std::int64_t end = 0;
    for (const auto& [name, tensor] : model->state()) {
      std::string sizes;
      for (const std::int64_t size : tensor.shape()) sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
      const std::int64_t begin = std::exchange(end, end + tensor.numel() * bytes);
      header += (begin == 0 ? "\"" : ",\"") + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + sizes +
                "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
    }
    header += "}";
    const std::uint64_t length = header.size();
    testing::write_bytes(path, std::string(reinterpret_cast<const char*>(&length), sizeof length) + header +
                                   std::string(static_cast<std::size_t>(end), '\1'));
    const std::string expected = std::string("' has dtype ") + dtype + ", which has no counterpart here";
    CHECK_THROWS_WITH_AS(load_weights(*model, path), doctest::Contains(expected.c_str()), IoError);
  }
  CHECK(fingerprint(model->state()) == before);
}

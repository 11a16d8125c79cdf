// The Long Range Arena's transformer against its authors' code: logits, loss, attention maps, last activations and
// every gradient (POLYGRAD_GOLDEN/lra, pooling over padding); and against plain PyTorch with the mean over the valid
// tokens (lra/ beside this file, made by make_lra_golden.py).
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/autograd.h"
#include "models/sequence/lra.h"
#include "models/weights.h"
#include "ops/loss.h"
#include "ops/view.h"
#include "tests/golden/golden_files.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"

using namespace polygrad;
using namespace polygrad::testing;
using nlohmann::json;

namespace {

std::unique_ptr<Lra> build(const json& config, const std::string& phi, const std::string& folder, bool over_padding) {
  LraConfig lra;
  lra.vocabulary = config["vocab_size"];
  lra.positions = config["max_seq_len"];
  lra.length = config["seq_len"];
  lra.towers = config["arch"] == "lra_two_tower" ? 2 : 1;
  lra.embed_dim = config["embedding_dim"];
  lra.depth = config["num_layers"];
  lra.num_heads = config["num_head"];
  lra.mlp_ratio = config["transformer_hidden_dim"].get<double>() / config["embedding_dim"].get<double>();
  lra.num_classes = config["num_classes"];
  lra.phi = {parse_activation(phi)};
  lra.scale = config["c"].dump();
  lra.mask_zero = true;
  lra.pool_over_padding = over_padding;
  auto model = std::make_unique<Lra>(lra);
  NamedTensors weights;
  for (const auto& [name, tensor] : read_golden(folder, "weights")) weights.emplace_back(name, tensor);
  load_state(*model, weights, {}, folder);
  return model;
}

// (batch, towers, length)
Tensor tokens_of(const TensorMap& input) {
  const Tensor first = input.at("input_ids_0");
  const std::int64_t batch = first.size(0), length = first.size(1), towers = input.count("input_ids_1") ? 2 : 1;
  std::vector<std::int64_t> ids;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t t = 0; t < towers; ++t) {
      const std::vector<std::int64_t> row = input.at("input_ids_" + std::to_string(t)).to_vector<std::int64_t>();
      ids.insert(ids.end(), row.begin() + b * length, row.begin() + (b + 1) * length);
    }
  }
  return Tensor::from_vector(ids, {batch, towers, length});
}

void check_relative(const std::string& name, const std::vector<double>& got, const std::vector<double>& want,
                    double tolerance) {
  const double error = largest_difference(got, want) / std::max(largest(want), 1e-30);
  CHECK_MESSAGE(error <= tolerance, name << ": error " << error << " of the largest value, allowed " << tolerance);
}

// P of each layer, of the queries that are there; hidden rows are set to 0 on both sides, for nobody reads them.
struct MapRecorder : AttentionObserver {
  void observe(const AttentionCall& call) override {
    AttentionMasks keys = call.masks;
    keys.query_mask = Tensor();
    maps["transformer_" + std::to_string(call.layer.config().layer - 1)] =
        attention_map(call.q, call.k, call.params, keys);
  }
  TensorMap maps;
};

std::vector<double> without_hidden_rows(const Tensor& map, const std::vector<std::int64_t>& ids) {
  std::vector<double> values = values_of(map);
  const std::int64_t batch = map.size(0), heads = map.size(1), length = map.size(2);
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < length; ++i) {
        if (ids[static_cast<std::size_t>(b * length + i)] != 0) continue;
        const auto row = values.begin() + ((b * heads + h) * length + i) * length;
        std::fill(row, row + length, 0.0);
      }
    }
  }
  return values;
}

void check_inside(const Lra& model, const TensorMap& input, const TensorMap& want) {
  const NoGradGuard no_grad;
  for (int tower = 0; tower < model.config().towers; ++tower) {
    const std::string prefix = "tower" + std::to_string(tower) + ".";
    if (want.count("act." + prefix + "model_out") == 0) continue;
    const Tensor ids = input.at("input_ids_" + std::to_string(tower));
    const std::vector<std::int64_t> values = ids.to_vector<std::int64_t>();
    MapRecorder recorder;
    std::vector<double> last;
    {
      const AttentionObserverGuard guard(recorder);
      last = values_of(model.encoder().forward(model.prepare(ids)));
    }
    const std::int64_t dim = model.config().embed_dim;
    for (std::size_t i = 0; i < last.size(); ++i) {
      if (values[i / static_cast<std::size_t>(dim)] == 0) last[i] = 0;
    }
    check_relative(prefix + "model_out", last, values_of(want.at("act." + prefix + "model_out")), 1e-5);
    CHECK(static_cast<std::int64_t>(recorder.maps.size()) == model.config().depth);
    for (const auto& [layer, map] : recorder.maps) {
      check_relative(prefix + layer, without_hidden_rows(map, values),
                     without_hidden_rows(want.at("attn." + prefix + layer), values), 1e-5);
    }
  }
}

void check_gradients(const Lra& model, const TensorMap& want, bool softmax) {
  for (const auto& [path, parameter] : model.named_parameters()) {
    CAPTURE(path);
    REQUIRE(want.count("grad." + path) == 1);
    REQUIRE(parameter.grad().defined());
    const std::vector<double> got = values_of(parameter.grad());
    // softmax ignores a shift of all keys: the gradient of their bias is 0 but for rounding.
    if (softmax && path.ends_with("mha.W_k.bias")) {
      CHECK(largest(got) < 1e-5);
    } else {
      check_relative(path, got, values_of(want.at("grad." + path)), softmax ? 5e-5 : 1e-4);
    }
  }
}

void check_case(const std::string& folder) {
  std::ifstream file(folder + "/config.json");
  const json config = json::parse(file);
  const bool over_padding = config["pooling_mode"] == "MEAN";
  const TensorMap input = read_golden(folder, "input");
  const Tensor tokens = tokens_of(input);
  std::vector<std::string> phis = {"softmax", "x3"};
  if (config.contains("phis")) phis = config["phis"].get<std::vector<std::string>>();
  for (const std::string& phi : phis) {
    CAPTURE(folder);
    CAPTURE(phi);
    const TensorMap want = read_golden(folder, phi);
    const auto model = build(config, phi, folder, over_padding);
    const Tensor logits = model->forward(tokens), labels = input.at("labels");
    const Tensor loss = cross_entropy(logits, labels);
    loss.backward();
    CHECK(largest_difference(values_of(logits), values_of(want.at("logits"))) <= 2e-5);
    CHECK(largest_difference(values_of(loss), values_of(want.at("loss"))) <= 2e-5);
    if (want.count("loss.per_sample") == 1) {
      const Tensor each = cross_entropy(logits, labels, {.reduction = Reduction::none});
      CHECK(largest_difference(values_of(each), values_of(want.at("loss.per_sample"))) <= 2e-5);
    }
    check_gradients(*model, want, phi == "softmax");
    check_inside(*model, input, want);
    if (want.count("valid_pool.logits") == 1) {
      const auto valid = build(config, phi, folder, false);
      const Tensor valid_logits = valid->forward(tokens);
      CHECK(largest_difference(values_of(valid_logits), values_of(want.at("valid_pool.logits"))) <= 2e-5);
      const Tensor valid_loss = cross_entropy(valid_logits, labels);
      CHECK(largest_difference(values_of(valid_loss), values_of(want.at("valid_pool.loss"))) <= 2e-5);
    }
  }
}

void check_folder(const std::string& cases) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(cases)) {
    check_case(entry.path().string());
    ++count;
  }
  CHECK(count > 0);
}

}  // namespace

TEST_CASE("LRA models against the reference's code: the given set") {
  if (golden_folder().empty()) return skip("sample data missing: POLYGRAD_GOLDEN is not set");
  check_folder(golden_folder() + "/lra");
}

TEST_CASE("LRA models against plain PyTorch, mean over the valid tokens: our own set") {
  check_folder(source_dir() + "/tests/golden/lra");
}

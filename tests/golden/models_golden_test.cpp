// Whole models against timm: logits, loss, every activation, attention map and gradient, and AdamW's steps.
//
// Runs every case of POLYGRAD_GOLDEN/models whose architecture is built here, and those committed beside this file
// (made by make_golden.py), with each provider of matrix products.
#include <doctest/doctest.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/autograd.h"
#include "models/optim/adamw.h"
#include "models/vision/deit.h"
#include "models/vision/vit.h"
#include "models/weights.h"
#include "ops/attention.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "tests/golden/golden_files.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"

using namespace polygrad;
using namespace polygrad::testing;
using nlohmann::json;

namespace {

// The activations of a result file's name: the name itself, or what "phi_layers" says (one for each layer).
std::vector<Activation> activations_of(const json& config, const std::string& phi) {
  if (!config.contains("phi_layers") || !config["phi_layers"].contains(phi)) return {parse_activation(phi)};
  std::vector<Activation> result;
  for (const std::string name : config["phi_layers"][phi]) result.push_back(parse_activation(name));
  return result;
}

std::unique_ptr<Vit> build(const json& config, const std::string& phi, const std::string& folder) {
  VitConfig vit;
  vit.image_size = {config["image"][0], config["image"][1]};
  vit.patch_size = {config["patch"][0], config["patch"][1]};
  vit.in_channels = config.value("channels", 3);
  vit.embed_dim = config["dim"];
  vit.num_heads = config["heads"];
  vit.depth = config["depth"];
  vit.mlp_ratio = config["mlp_ratio"];
  vit.num_classes = config["classes"];
  const json& timm = config["timm_kwargs"];
  vit.class_token = timm.value("class_token", true);
  vit.pool = timm.value("global_pool", "token") == "avg" ? Pool::mean : Pool::token;
  vit.norm_eps = config["ln_eps"][0];
  vit.phi = activations_of(config, phi);
  vit.scale = config["c"].dump();
  if (config["arch"] == "deit") vit = deit_config(vit);
  auto model = std::make_unique<Vit>(vit);
  load_weights(*model, folder + "/weights.safetensors");
  return model;
}

// P of each layer, by module path.
struct MapRecorder : AttentionObserver {
  void observe(const AttentionCall& call) override {
    const std::string path = call.layer.path();  // "blocks.0.attn"; the files say "blocks.0"
    maps["attn." + path.substr(0, path.rfind('.'))] = attention_map(call.q, call.k, call.params);
  }
  TensorMap maps;
};

// The activations that the files name, computed stage by stage.
TensorMap activations(const Vit& model, const Tensor& images) {
  TensorMap result;
  result["act.patch_embed"] = model.patch_embed().forward(images);
  Tensor x = model.embed(images);
  result["act.blocks.0.input"] = x;
  for (std::int64_t i = 0; i < model.config().depth; ++i) {
    x = model.block(i).forward(x);
    result["act.blocks." + std::to_string(i)] = x;
  }
  const bool mean = model.config().pool == Pool::mean;
  result[mean ? "act.fc_norm" : "act.norm"] = model.norm().forward(mean ? model.pooled(x) : x);
  return result;
}

void check_relative(const std::string& name, const Tensor& got, const Tensor& want, double tolerance) {
  CHECK_MESSAGE(got.shape() == want.shape(), name);
  const std::vector<double> expected = values_of(want);
  const double error = largest_difference(values_of(got), expected) / std::max(largest(expected), 1e-30);
  CHECK_MESSAGE(error <= tolerance, name << ": error " << error << " of the largest value, allowed " << tolerance);
}

bool is_qkv_bias(const std::string& name) { return name.ends_with("attn.qkv.bias"); }

// softmax ignores a shift of all keys, so the gradient of the keys' bias is 0 but for rounding.
void check_gradient(const std::string& name, const Tensor& got, const Tensor& want, bool softmax, double tolerance) {
  std::vector<double> a = values_of(got), b = values_of(want);
  const double scale = std::max(largest(b), 1e-30);
  if (softmax && is_qkv_bias(name)) {
    for (std::size_t i = a.size() / 3; i < 2 * a.size() / 3; ++i) {
      CHECK_MESSAGE(std::abs(a[i]) < 1e-5, name << "[" << i << "] is " << a[i] << "; its gradient is 0");
      a[i] = b[i] = 0;
    }
  }
  const double error = largest_difference(a, b) / scale;
  CHECK_MESSAGE(error <= tolerance, name << ": error " << error << " of the largest value, allowed " << tolerance);
}

void check_forward_backward(const json& config, const std::string& folder, const std::string& phi) {
  const auto model = build(config, phi, folder);
  const TensorMap input = read_golden(folder, "input");
  TensorMap want = read_golden(folder, phi);
  MapRecorder recorder;
  Tensor logits;
  {
    const AttentionObserverGuard guard(recorder);
    logits = model->forward(input.at("images"));
  }
  Tensor loss = cross_entropy(logits, input.at("labels"));
  loss.backward();

  TensorMap got = recorder.maps;
  {
    const NoGradGuard no_grad;
    got.merge(activations(*model, input.at("images")));
  }
  const bool softmax = phi == "softmax";
  CHECK(largest_difference(values_of(logits), values_of(want.at("logits"))) <= 2e-5);
  CHECK(largest_difference(values_of(loss), values_of(want.at("loss"))) <= 2e-5);
  for (const auto& [name, tensor] : got) {
    CHECK_MESSAGE(want.count(name) == 1, name << " is not in the file");
    if (want.count(name) == 1) check_relative(name, tensor, want.at(name), 1e-5);
  }
  for (const auto& [path, parameter] : model->named_parameters()) {
    const std::string name = "grad." + path;
    CHECK_MESSAGE(want.count(name) == 1, name << " is not in the file");
    REQUIRE_MESSAGE(parameter.grad().defined(), name);
    if (want.count(name) == 1) check_gradient(name, parameter.grad(), want.at(name), softmax, softmax ? 5e-5 : 1e-4);
    got[name] = Tensor();
  }
  // Nothing in the file was left unread.
  for (const auto& [name, tensor] : want) {
    CHECK_MESSAGE((name == "logits" || name == "loss" || got.count(name) == 1), name << " was not compared");
  }
}

void check_parameters(const Vit& model, const TensorMap& want, bool softmax, double steps_times_lr) {
  std::size_t elements = 0, off = 0;
  CHECK(want.size() == model.named_parameters().size());
  for (const auto& [path, parameter] : model.named_parameters()) {
    REQUIRE_MESSAGE(want.count(path) == 1, path);
    const std::vector<double> a = values_of(parameter), b = values_of(want.at(path));
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      const bool free = softmax && is_qkv_bias(path) && i >= a.size() / 3 && i < 2 * a.size() / 3;
      const double error = std::abs(a[i] - b[i]);
      const double allowed = free ? steps_times_lr : 1e-3;
      CHECK_MESSAGE(error <= allowed, path << "[" << i << "]: " << a[i] << " instead of " << b[i]);
      ++elements;
      off += !free && error > 2e-5 ? 1 : 0;
    }
  }
  CHECK_MESSAGE(off * 1000 <= elements, off << " of " << elements << " parameters are off by more than 2e-5");
}

void check_adamw(const json& config, const std::string& folder, const std::string& phi) {
  const auto model = build(config, phi, folder);
  const TensorMap input = read_golden(folder, "input");
  const json& settings = config["adamw"];
  AdamWOptions options;
  options.beta1 = settings["betas"][0];
  options.beta2 = settings["betas"][1];
  options.eps = settings["eps"];
  const std::vector<ParamGroup> groups = param_groups(*model, settings["weight_decay"]);
  std::set<std::string> no_decay;
  for (const ParamGroup& group : groups) {
    for (const auto& [path, tensor] : group.parameters) {
      if (group.weight_decay == 0) no_decay.insert(path);
    }
  }
  CHECK(no_decay == settings["no_decay"].get<std::set<std::string>>());
  AdamW optimizer(groups, options);

  const double lr = settings["lr"];
  const bool softmax = phi == "softmax";
  const std::vector<double> losses = values_of(read_golden(folder, phi + ".adamw_losses").at("losses"));
  for (std::size_t step = 0; step < losses.size(); ++step) {
    const Tensor loss = cross_entropy(model->forward(input.at("images")), input.at("labels"));
    CHECK_MESSAGE(std::abs(loss.item<double>() - losses[step]) <= 1e-5, "loss before step " << step);
    const std::string after = phi + ".adamw" + std::to_string(step);
    if (std::filesystem::exists(folder + "/" + after + ".safetensors")) {
      check_parameters(*model, read_golden(folder, after), softmax, static_cast<double>(step) * lr);
    }
    optimizer.zero_grad();
    loss.backward();
    optimizer.step({lr, std::nullopt});
  }
}

void check_case(const std::string& folder) {
  const std::string name = std::filesystem::path(folder).filename().string();
  std::ifstream file(folder + "/config.json");
  const json config = json::parse(file);
  const std::string arch = config["arch"];
  if (arch != "vit" && arch != "deit") {
    std::printf("golden model %s: architecture %s is not built yet\n", name.c_str(), arch.c_str());
    return;
  }
  for (const std::string phi : config["phis"]) {
    CAPTURE(name);
    CAPTURE(phi);
    check_forward_backward(config, folder, phi);
    if (config.contains("adamw")) check_adamw(config, folder, phi);
  }
}

void check_folder(const std::string& models) {
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    if (std::filesystem::exists(entry.path() / "config.json")) folders.push_back(entry.path().string());
  }
  std::sort(folders.begin(), folders.end());
  CHECK(!folders.empty());
  const GemmProvider before = gemm_provider();
  for (const GemmProvider provider : {GemmProvider::onednn, GemmProvider::eigen}) {
    if (!has_gemm_provider(provider)) continue;
    set_gemm_provider(provider);
    CAPTURE(to_string(provider));
    for (const std::string& folder : folders) check_case(folder);
  }
  set_gemm_provider(before);
}

}  // namespace

TEST_CASE("models against timm: the given set") {
  if (golden_folder().empty()) return skip("sample data missing: POLYGRAD_GOLDEN is not set");
  check_folder(golden_folder() + "/models");
}

TEST_CASE("models against timm: our own set") { check_folder(source_dir() + "/tests/golden/models"); }

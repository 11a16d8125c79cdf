// Module: the tree, its names and order, creation, conversion, and the numbers of stochastic layers.
#include <doctest/doctest.h>

#include <cmath>

#include "engine/error.h"
#include "models/nn/dropout.h"
#include "models/nn/linear.h"
#include "models/nn/module.h"

using namespace polygrad;

namespace {

class Inner : public Module {
 public:
  Inner()
      : drop(child<Dropout>("drop", 0.5)),
        proj(child<Linear>("proj", 3, 2)),
        gamma(parameter("gamma", {3}, Init::ones())) {}
  Dropout& drop;
  Linear& proj;
  const Tensor& gamma;
};

class Outer : public Module {
 public:
  Outer()
      : first(child<Inner>("layers.0")),
        path_drop(child<DropPath>("path_drop", 0.1)),
        second(child<Inner>("layers.1")),
        token(parameter("token", {1, 3}, Init::normal(0.02))),
        mean(buffer("running_mean", {3}, 0.5)),
        count(buffer("count", {}, 7, DType::i64)) {}
  Inner& first;
  DropPath& path_drop;
  Inner& second;
  const Tensor& token;
  const Tensor& mean;
  const Tensor& count;
};

class Twice : public Module {
 public:
  explicit Twice(bool parameters) {
    if (parameters) {
      parameter("weight", {1}, Init::zeros());
      parameter("weight", {1}, Init::zeros());
    } else {
      child<Dropout>("drop", 0.0);
      child<Dropout>("drop", 0.0);
    }
  }
};

std::vector<std::string> names(const NamedTensors& tensors) {
  std::vector<std::string> result;
  for (const auto& [name, tensor] : tensors) result.push_back(name);
  return result;
}

}  // namespace

TEST_CASE("a module's own tensors come before its children's, each in the order of registration") {
  Outer model;
  const std::vector<std::string> parameters = {
      "token",          "layers.0.gamma",       "layers.0.proj.weight", "layers.0.proj.bias",
      "layers.1.gamma", "layers.1.proj.weight", "layers.1.proj.bias"};
  CHECK(names(model.named_parameters()) == parameters);
  std::vector<std::string> state = parameters;
  state.insert(state.begin() + 1, {"running_mean", "count"});
  CHECK(names(model.state()) == state);
  CHECK(model.parameter_count() == 3 + 2 * (3 + 6 + 2));
  CHECK(model.path() == "");
  CHECK(model.second.proj.path() == "layers.1.proj");
  CHECK(model.second.proj.parent() == &model.second);
  CHECK(model.find("layers.1.proj.bias").is_same(model.second.proj.bias()));
  CHECK_FALSE(model.find("layers.1.proj").defined());
}

TEST_CASE("a name is given once") {
  CHECK_THROWS_AS(Twice(true), InternalError);
  CHECK_THROWS_AS(Twice(false), InternalError);
}

TEST_CASE("a parameter is NaN until something fills it; a buffer has its value from the start") {
  Outer model;
  CHECK(std::isnan(model.token.to_vector<float>()[0]));
  CHECK(model.token.requires_grad());
  CHECK_FALSE(model.mean.requires_grad());
  CHECK(model.mean.to_vector<float>() == std::vector<float>(3, 0.5f));
  CHECK(model.count.item<std::int64_t>() == 7);
  initialize(model, 0);
  for (const auto& [path, tensor] : model.state()) {
    if (!is_floating(tensor.dtype())) continue;
    for (const float value : tensor.to_vector<float>()) CHECK_MESSAGE(std::isfinite(value), path);
  }
  CHECK(model.count.item<std::int64_t>() == 7);
}

TEST_CASE("conversion replaces the tensors; members follow, and integers keep their dtype") {
  Outer model;
  initialize(model, 3);
  const float before = model.first.proj.weight().to_vector<float>()[0];
  model.to(DType::f64);
  CHECK(model.first.proj.weight().dtype() == DType::f64);
  CHECK(model.first.proj.weight().to_vector<double>()[0] == static_cast<double>(before));
  CHECK(model.first.proj.weight().requires_grad());
  CHECK(model.first.proj.weight().is_leaf());
  CHECK(model.mean.dtype() == DType::f64);
  CHECK_FALSE(model.mean.requires_grad());
  CHECK(model.count.dtype() == DType::i64);
  CHECK_THROWS_AS(model.to(DType::i32), DTypeError);
}

TEST_CASE("stochastic layers are numbered in tree order, whatever their rates") {
  Outer model;
  initialize(model, 0);
  CHECK(model.first.drop.layer() == 0);
  CHECK(model.path_drop.layer() == 1);
  CHECK(model.second.drop.layer() == 2);
  CHECK(model.second.drop.layers() == 3);
  ForwardContext context;
  context.seed = 11;
  context.step = 5;
  context.first_sample = 64;
  const Generator generator = model.second.drop.generator(context);
  CHECK(generator.seed() == 11);
  CHECK(generator.offset() == 5 * 3 + 2);
  CHECK(generator.first_sample() == 64);
}

TEST_CASE("a linear layer without a bias has one tensor") {
  Linear layer(4, 2, false);
  CHECK(names(layer.named_parameters()) == std::vector<std::string>{"weight"});
  CHECK_FALSE(layer.bias().defined());
}

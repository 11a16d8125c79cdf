// Parameter groups: which parameters share which weight decay. A predicate on name and rank chooses.
//
// Read next: optimizer.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "models/nn/module.h"

namespace polygrad {

struct ParamGroup {
  std::string name;  // "decay", "no_decay": for people
  NamedTensors parameters;
  double weight_decay = 0;
  double lr_scale = 1;  // times the schedule's learning rate
};

// Whether the parameter of this path and rank is decayed.
using DecayPredicate = std::function<bool(const std::string& path, int rank)>;

// Not decayed: everything of rank 0 or 1 (biases, all norm parameters, LayerScale), *.bias, class and distillation
// tokens, position embeddings, relative-position tables, XCiT's temperature.
bool default_decay(const std::string& path, int rank);

// The parameters of `model` in two groups, each in the model's order; an empty group is left out.
std::vector<ParamGroup> param_groups(const Module& model, double weight_decay, const DecayPredicate& decayed = {});

// One line a group: name, weight decay, tensors, elements, and the kinds of parameters in it (layer numbers as *).
std::string describe(const std::vector<ParamGroup>& groups);

}  // namespace polygrad

#include "models/optim/param_groups.h"

#include <algorithm>
#include <array>

#include "engine/format.h"
#include "models/summary.h"

namespace polygrad {

namespace {

// Parameters of rank 2 and more that are offsets or gains rather than maps: one part of the path is this.
constexpr std::array<const char*, 7> kNotDecayed = {"bias",       "cls_token",           "dist_token",
                                                    "pos_embed",  "position_embeddings", "relative_position_bias_table",
                                                    "temperature"};

}  // namespace

bool default_decay(const std::string& path, int rank) {
  if (rank < 2) return false;
  const std::string parts = "." + path + ".";
  return std::none_of(kNotDecayed.begin(), kNotDecayed.end(),
                      [&](const char* name) { return parts.find(format(".{}.", name)) != std::string::npos; });
}

std::vector<ParamGroup> param_groups(const Module& model, double weight_decay, const DecayPredicate& decayed) {
  std::vector<ParamGroup> groups = {{"decay", {}, weight_decay, 1}, {"no_decay", {}, 0, 1}};
  for (auto& [path, tensor] : model.named_parameters()) {
    const bool decays = decayed ? decayed(path, tensor.dim()) : default_decay(path, tensor.dim());
    groups[decays ? 0 : 1].parameters.emplace_back(path, tensor);
  }
  std::erase_if(groups, [](const ParamGroup& group) { return group.parameters.empty(); });
  return groups;
}

std::string describe(const std::vector<ParamGroup>& groups) {
  std::string text;
  for (const ParamGroup& group : groups) {
    std::int64_t elements = 0;
    std::vector<std::string> kinds;
    for (const auto& [path, tensor] : group.parameters) {
      elements += tensor.numel();
      std::string kind = parameter_kind(path);
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(std::move(kind));
    }
    text += format("{}: weight decay {:g}, lr x {:g}, {} tensors, {} elements:", group.name, group.weight_decay,
                   group.lr_scale, group.parameters.size(), elements);
    for (const std::string& kind : kinds) text += " " + kind;
    text += "\n";
  }
  return text;
}

}  // namespace polygrad

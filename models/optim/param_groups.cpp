#include "models/optim/param_groups.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/format.h"

namespace polygrad {

namespace {

// Parameters of rank 2 and more that are offsets or gains rather than maps, by the last or last but one part of their
// path.
constexpr std::array<std::string_view, 7> kNotDecayed = {
    "bias",       "cls_token", "dist_token", "pos_embed", "position_embeddings", "relative_position_bias_table",
    "temperature"};

// blocks.3.attn.qkv.weight -> blocks.*.attn.qkv.weight: the kinds of parameters, for a short list.
std::string kind_of(const std::string& path) {
  std::string kind, part;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    part = path.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string::npos) part = "*";
    kind += (kind.empty() ? "" : ".") + part;
    begin = end + 1;
  }
  return kind;
}

}  // namespace

bool default_decay(const std::string& path, int rank) {
  if (rank < 2) return false;
  const std::size_t dot = path.rfind('.');
  const std::string_view text = path;
  const std::string_view last = dot == std::string::npos ? text : text.substr(dot + 1);
  std::string_view before = dot == std::string::npos ? std::string_view() : text.substr(0, dot);
  if (const std::size_t previous = before.rfind('.'); previous != std::string_view::npos) {
    before = before.substr(previous + 1);
  }
  return std::none_of(kNotDecayed.begin(), kNotDecayed.end(),
                      [&](std::string_view name) { return name == last || name == before; });
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
      std::string kind = kind_of(path);
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

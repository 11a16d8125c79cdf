// Names of activations and paths, and the choice of a path: everything of ops/attention.h that touches no tensor.
#include <cmath>

#include "engine/error.h"
#include "engine/format.h"
#include "ops/attention.h"
#include "ops/kernels/attention_activation.h"

namespace polygrad {

using attention_activation::ActivationList;
using attention_activation::kIdentity;
using attention_activation::kPowers;
using attention_activation::kSoftmax;

// --- φ --------------------------------------------------------------------------------------------------------------

Activation Activation::power(int p) {
  if (p < 1 || p > kPowers) {
    throw ValueError(format("[attention] no such power of s: x^{}; expected 1 <= p <= {}", p, kPowers));
  }
  return {p - 1};
}

int Activation::power() const { return 0 <= id && id < kPowers ? id + 1 : 0; }

Activation parse_activation(std::string_view name) {
  if (name == "softmax") return Activation::softmax();
  if (name == "x1") return Activation::power(1);
  for (std::int32_t id = 0; id < ActivationList::kCount; ++id) {
    if (name == ActivationList::kNames[id]) return {id};
  }
  if (name.size() == 3 && name.substr(0, 2) == "x^" && '1' <= name[2] && name[2] <= '9') {
    return Activation::power(name[2] - '0');
  }
  throw ConfigError(format("[attention.phi] unknown activation '{}'; expected one of {}", name, activation_names()));
}

std::string to_string(Activation activation) {
  if (activation.is_softmax()) return "softmax";
  if (activation.id >= ActivationList::kCount) {
    throw ValueError(format("[attention] no activation has id {}; make one with parse_activation", activation.id));
  }
  return ActivationList::kNames[activation.id];
}

std::vector<Activation> all_activations() {
  std::vector<Activation> all;
  for (std::int32_t id = kSoftmax; id < ActivationList::kCount; ++id) all.push_back({id});
  return all;
}

std::string activation_names() {
  std::string names = "softmax";
  for (std::int32_t id = 0; id < ActivationList::kCount; ++id) {
    if (id > 2 && id < kPowers) continue;  // the powers above 3 are one word
    names += format(", {}", ActivationList::kNames[id]);
    if (id == 2) names += format(", x^p (p = 1 ... {})", kPowers);
  }
  return names;
}

// --- paths ----------------------------------------------------------------------------------------------------------

const char* to_string(AttentionPath path) {
  switch (path) {
    case AttentionPath::automatic:
      return "auto";
    case AttentionPath::tiled:
      return "tiled";
    case AttentionPath::linear:
      return "linear";
    case AttentionPath::materialised:
      return "materialised";
  }
  return "auto";
}

AttentionPath parse_attention_path(std::string_view name) {
  for (const AttentionPath path :
       {AttentionPath::automatic, AttentionPath::tiled, AttentionPath::linear, AttentionPath::materialised}) {
    if (name == to_string(path)) return path;
  }
  throw ConfigError(
      format("[attention.path] unknown path '{}'; expected one of auto, tiled, linear, materialised", name));
}

namespace {

// Why the linear path is not allowed; null where it is.
const char* against_linear(const AttentionParams& params, bool bias, bool regions) {
  if (params.phi.id != kIdentity) return "only φ = x has a linear form";
  if (bias) return "a bias is added to single entries of q kᵀ";
  if (regions) return "regions hide single entries of q kᵀ";
  if (params.dropout > 0) return "dropout acts on single entries of q kᵀ";
  return nullptr;
}

std::string in_millions(double count) { return format("{:.3g} M", count / 1e6); }

}  // namespace

AttentionChoice choose_attention_path(const AttentionParams& params, std::int64_t queries, std::int64_t keys,
                                      std::int64_t head_dim, bool bias, bool regions) {
  const char* reason = against_linear(params, bias, regions);
  if (params.path == AttentionPath::linear && reason != nullptr) {
    throw ValueError(format("[attention] the path 'linear' cannot be taken with φ = {}: {}; use auto or tiled",
                            to_string(params.phi), reason));
  }
  if (params.path != AttentionPath::automatic) return {params.path, "asked for by name"};
  if (reason != nullptr) return {AttentionPath::tiled, reason};
  // Multiply-adds of one head, forward: (kᵀ v, then q times it) against (q kᵀ, then P v). The backward has the ratio
  // too.
  const double n = static_cast<double>(queries), m = static_cast<double>(keys), d = static_cast<double>(head_dim);
  const double linear = (n + m) * d * d, tiled = 2 * n * m * d;
  const bool fewer = linear < tiled;
  return {fewer ? AttentionPath::linear : AttentionPath::tiled,
          format("{} multiply-adds a head instead of {}", in_millions(fewer ? linear : tiled),
                 in_millions(fewer ? tiled : linear))};
}

}  // namespace polygrad

#include "models/optim/ema.h"

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/format.h"
#include "models/weights.h"
#include "ops/optim_step.h"

namespace polygrad {

namespace {

// The tensors of both models, side by side.
std::vector<std::pair<Tensor, Tensor>> pairs(const Module& average, const Module& model) {
  const NamedTensors a = average.state(), m = model.state();
  std::vector<std::pair<Tensor, Tensor>> result;
  for (std::size_t i = 0; i < a.size() && i < m.size(); ++i) {
    if (a[i].first != m[i].first || a[i].second.shape() != m[i].second.shape()) {
      throw ValueError(format("[ema] the average is of another model: expected {} {}, got {} {}", m[i].first,
                              to_string(m[i].second.shape()), a[i].first, to_string(a[i].second.shape())));
    }
    result.emplace_back(a[i].second.detach(), m[i].second.detach());
  }
  if (a.size() != m.size()) {
    throw ValueError(format("[ema] the average is of another model: {} tensors against {}", a.size(), m.size()));
  }
  return result;
}

}  // namespace

Ema::Ema(Module& average, const Module& model, double decay) : average_(average), decay_(decay) {
  if (!(decay >= 0 && decay < 1)) throw ValueError(format("[ema] expected 0 <= decay < 1, got {}", decay));
  for (auto& [mean, value] : pairs(average, model)) mean.copy_(value);
}

void Ema::update(const Module& model) {
  std::vector<Tensor> means, values;
  for (auto& [mean, value] : pairs(average_, model)) {
    if (is_floating(mean.dtype())) {
      means.push_back(mean);
      values.push_back(value);
    } else {
      mean.copy_(value);
    }
  }
  ema_update(means, values, decay_);
  ++updates_;
}

void Ema::import_state(const NamedTensors& state, std::int64_t updates) {
  load_state(average_, state);
  updates_ = updates;
}

}  // namespace polygrad

#include "apps/training/probes.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/autograd.h"
#include "ops/attention.h"
#include "ops/view.h"

namespace polygrad {

namespace {

constexpr std::int64_t kSamplesAtOnce = 32;  // bounds the memory of a probe

// Sums over samples; divided at the end.
struct LayerSums {
  std::int64_t samples = 0;
  std::vector<HeadNorms> heads;
};

struct Stopped {};  // ends a forward pass

// Shows another observer what it sees, until a stop is requested.
class StoppedObserver : public AttentionObserver {
 public:
  StoppedObserver(AttentionObserver& observer, const std::stop_token& stop) : observer_(observer), stop_(stop) {}
  void observe(const AttentionCall& call) override {
    if (stop_.stop_requested()) throw Stopped();
    observer_.observe(call);
  }

 private:
  AttentionObserver& observer_;
  const std::stop_token& stop_;
};

class NormObserver : public AttentionObserver {
 public:
  void observe(const AttentionCall& call) override {
    const AttentionNorms norms = attention_norms(call.x, call.q, call.k, call.params, call.masks);
    const std::int64_t samples = norms.a.size(0), heads = norms.a.size(1);
    const auto layer = static_cast<std::size_t>(call.layer.config().layer);
    if (layers.size() < layer) layers.resize(layer);
    LayerSums& sums = layers[layer - 1];
    sums.heads.resize(static_cast<std::size_t>(heads));
    sums.samples += samples;
    const std::vector<double> a = norms.a.to_vector<double>(), s = norms.j_s.to_vector<double>(),
                              q = norms.j_q.to_vector<double>(), k = norms.j_k.to_vector<double>();
    for (std::size_t i = 0; i < a.size(); ++i) {
      HeadNorms& head = sums.heads[i % static_cast<std::size_t>(heads)];
      head.attention += a[i];
      head.jacobian_s += s[i];
      head.jacobian_s_sq += s[i] * s[i];
      head.jacobian_q += q[i];
      head.jacobian_q_sq += q[i] * q[i];
      head.jacobian_k += k[i];
    }
  }
  std::vector<LayerSums> layers;
};

}  // namespace

bool observe_forward(const Model& model, const Tensor& input, AttentionObserver& observer,
                     const std::stop_token& stop) {
  const NoGradGuard no_grad;
  // Tokens stay on the CPU, where masks and positions are made of them.
  const Tensor there = input.dtype() == DType::i64 ? input : input.to(model.device());
  StoppedObserver heeding(observer, stop);
  const AttentionObserverGuard guard(heeding);
  try {
    for (std::int64_t begin = 0; begin < input.size(0); begin += kSamplesAtOnce) {
      model.forward(slice(there, 0, begin, std::min(begin + kSamplesAtOnce, input.size(0))));
    }
  } catch (const Stopped&) {
    return false;
  }
  return true;
}

std::vector<LayerNorms> probe_norms(const Model& model, const Tensor& input, const std::stop_token& stop) {
  NormObserver observer;
  if (!observe_forward(model, input, observer, stop)) return {};
  std::vector<LayerNorms> result;
  for (std::size_t i = 0; i < observer.layers.size(); ++i) {
    LayerSums& sums = observer.layers[i];
    if (sums.samples == 0) continue;
    const double share = 1.0 / static_cast<double>(sums.samples);
    for (HeadNorms& head : sums.heads) {
      for (double* value : {&head.attention, &head.jacobian_s, &head.jacobian_s_sq, &head.jacobian_q,
                            &head.jacobian_q_sq, &head.jacobian_k}) {
        *value *= share;
      }
    }
    result.push_back({static_cast<std::int64_t>(i) + 1, std::move(sums.heads)});
  }
  return result;
}

MetricsRow norms_row(const LayerNorms& norms, std::int64_t step, double epoch) {
  HeadNorms mean;
  double smallest = std::numeric_limits<double>::infinity(), largest = -smallest;
  for (const HeadNorms& head : norms.heads) {
    mean.attention += head.attention;
    mean.jacobian_s += head.jacobian_s;
    mean.jacobian_s_sq += head.jacobian_s_sq;
    mean.jacobian_q += head.jacobian_q;
    mean.jacobian_q_sq += head.jacobian_q_sq;
    mean.jacobian_k += head.jacobian_k;
    smallest = std::min(smallest, head.attention);
    largest = std::max(largest, head.attention);
  }
  const double share = 1.0 / static_cast<double>(norms.heads.size());
  MetricsRow row("norms");
  row.add("step", step).add("epoch", epoch).add("layer", norms.layer);
  row.add("attention", mean.attention * share).add("attention_min", smallest).add("attention_max", largest);
  row.add("jacobian_s", mean.jacobian_s * share).add("jacobian_s_sq", mean.jacobian_s_sq * share);
  row.add("jacobian_q", mean.jacobian_q * share).add("jacobian_q_sq", mean.jacobian_q_sq * share);
  row.add("jacobian_k", mean.jacobian_k * share);
  return row;
}

}  // namespace polygrad

// NormProbe: the Frobenius norms of every attention map and of its Jacobians, on a fixed batch (docs/attention.md).
//
// Where this stands: beside trainer.h, above models/nn/attention.h (the observer) and ops/attention.h (the norms).
// A probe reads: no random number is drawn and no weight touched, so a run with probes ends with the weights of one
// without.
#pragma once

#include <cstdint>
#include <stop_token>
#include <vector>

#include "apps/training/metrics_log.h"
#include "models/model.h"

namespace polygrad {

struct LayerNorms {
  std::int64_t layer = 0;        // from 1
  std::vector<HeadNorms> heads;  // each the mean over the samples of the norm of one (sample, head) matrix
};

// Shows `observer` every attention of the model on `input` (a batch as a model takes it), a few samples at a time, in
// their order, without gradients. A stop is heeded between layers: false where it cut this off.
bool observe_forward(const Model& model, const Tensor& input, AttentionObserver& observer,
                     const std::stop_token& stop = {});

// Runs `input` (a batch as a model takes it, preprocessed as for evaluation) through the model, a few at a time, and
// measures every attention layer. A stop is heeded between layers: nothing is returned then.
std::vector<LayerNorms> probe_norms(const Model& model, const Tensor& input, const std::stop_token& stop = {});

// The row of metrics.jsonl for one layer: means over the heads, and the smallest and largest head's ‖P‖.
MetricsRow norms_row(const LayerNorms& norms, std::int64_t step, double epoch);

}  // namespace polygrad

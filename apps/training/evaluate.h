// Evaluation: loss and accuracy over a whole data set, and what each sample was taken for.
//
// Where this stands: below trainer.h; `--eval` and embedders use it too. It changes nothing of the model.
#pragma once

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "apps/training/checkpoint.h"
#include "apps/training/metrics_log.h"
#include "data/augment.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "models/zoo.h"
#include "ops/precision.h"

namespace polygrad {

struct EvalResult {
  double loss = 0;           // cross-entropy, mean over all samples; no label smoothing
  double top1 = 0;           // percent
  double top5 = 0;           // percent; NaN with at most 5 classes
  std::int64_t count = 0;    // every sample once, whatever the batch size
  std::int64_t skipped = 0;  // pictures that could not be used, where options.bad_sample drops them
  bool stopped = false;      // options.stop cut it off: the numbers above are not to be used
};

struct Prediction {
  std::int64_t index = 0;  // in the data set
  std::int64_t label = 0, predicted = 0;
  double probability = 0;  // softmax of the predicted class
};

struct EvalOptions {
  std::int64_t batch_size = 128;
  int workers = 0;
  bool drop_last = false;  // of an incomplete last batch, where there is a whole one
  Precision precision = Precision::f32;
  BadSample bad_sample = BadSample::stop;  // or drop: a picture that can't be used is counted as skipped
  std::stop_token stop = {};               // asked between batches
};

// How an image becomes the model's input wherever nothing is random: evaluation, prediction, probes.
ImageTransform evaluation_transform(const Preprocessing& preprocessing);
// The softmax of a row of logits; NaN where one is NaN.
std::vector<double> probabilities(const float* logits, std::int64_t classes);

// On the model's device. Of equal logits the lower class counts as predicted; a row with a NaN is wrong. `predictions`
// (may be null) is filled in the order of the data set.
EvalResult evaluate(const Model& model, std::shared_ptr<const Dataset> dataset, const Preprocessing& preprocessing,
                    const EvalOptions& options, std::vector<Prediction>* predictions = nullptr);

// What always taking the most frequent class gets, in percent.
double chance_level(const Dataset& dataset);

// The row of metrics.jsonl; `split` is "val" or "test", the step that of the weights.
MetricsRow eval_row(const std::string& split, std::int64_t step, double epoch, const EvalResult& result);

// predictions.csv (path,label,predicted,probability: classes by name), per_class.csv (class,count,correct,accuracy),
// confusion.csv (rows: labels, columns: predicted) and its picture confusion.png into `folder`, which is made. Throws
// IoError.
void write_predictions(const std::string& folder, const Dataset& dataset, const std::vector<Prediction>& predictions);

}  // namespace polygrad

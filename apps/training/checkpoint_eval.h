// Evaluating a checkpoint on data that may be laid out otherwise than the training's: `--eval`.
//
// Where this stands: above evaluate.h and data/catalog.h. Classes, preprocessing and model are the checkpoint's; labels
// are matched by name.
#pragma once

#include <string>
#include <vector>

#include "apps/training/checkpoint.h"
#include "apps/training/evaluate.h"
#include "data/catalog.h"

namespace polygrad {

struct CheckpointEval {
  CheckpointInfo info;
  EvalData data;
  EvalResult result;
  std::vector<Prediction> predictions;
  double epoch = 0;  // of the checkpoint
  Device device;
  Precision precision = Precision::f32;
  std::string precision_note;  // why it is not the one that was trained in; ""
};

// `config` is the checkpoint's own, with other values for data.*, eval.*, train.batch_size, threads where wanted.
// Computed on its `device`. Throws DeviceError where that is not there, DataError where the data can't be read, has a
// class that the model does not know, or images that do not fit.
CheckpointEval evaluate_checkpoint(const std::string& checkpoint, const CheckpointInfo& info, const Config& config);

}  // namespace polygrad

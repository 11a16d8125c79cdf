// Classifier: a trained model with everything a picture needs on its way into it.
//
// Where this stands: above checkpoint.h; for applications, and for `vit_train --predict`. Training, evaluation and this
// prepare a picture with the same functions and the numbers that the checkpoint keeps.
//
//   const Classifier classifier = Classifier::load("runs/mine/checkpoints/best");
//   for (const ClassScore& guess : classifier.predict("photo.jpg")) use(guess.name, guess.probability);
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/training/checkpoint.h"
#include "models/model.h"
#include "ops/precision.h"

namespace polygrad {

struct ClassScore {
  std::string name;
  std::int64_t index = 0;
  double probability = 0;
};

class Classifier {
 public:
  // `checkpoint` is a checkpoint or a run folder (its newest one); `weights` is "raw", "ema", or "" for
  // what its configuration evaluates. It computes on `device`, as `--eval` does: in the precision of the training where
  // that can be had there. Throws IoError, ConfigError, DeviceError.
  static Classifier load(const std::string& checkpoint, const std::string& weights = "", Device device = {});

  // The `top` most probable classes, best first; of equal ones the lower index. `image` is u8 (C, H, W) of any size
  // where the model was trained on pictures (three channels become grey for a grey model, one becomes three for an RGB
  // one), else of the size it was trained on; 32 x 32 for a model of grey pixels as tokens. Several threads may call at
  // once. Throws ShapeError, DTypeError, ImageError (another size), ConfigError (a model of texts).
  std::vector<ClassScore> predict(const Tensor& image, std::int64_t top = 5) const;
  // Of a picture file: JPEG, PNG, BMP, PNM. Throws ImageError (a DataError) naming the file.
  std::vector<ClassScore> predict(const std::string& path, std::int64_t top = 5) const;
  // The logits of a batch of prepared images (B, C, H, W), f32, on the CPU like them.
  Tensor logits(const Tensor& images) const;

  const std::vector<std::string>& class_names() const { return info_.class_names; }
  const Preprocessing& preprocessing() const { return info_.preprocessing; }
  const Config& config() const { return info_.config; }
  const Model& model() const { return *model_; }

 private:
  void refuse_texts() const;
  Tensor prepare(const Tensor& image, const std::string& name) const;  // the model's input, without the batch
  std::vector<ClassScore> rank(const Tensor& prepared, std::int64_t top) const;
  Classifier(CheckpointInfo info, std::shared_ptr<const Model> model, Precision precision);
  CheckpointInfo info_;
  std::shared_ptr<const Model> model_;
  Precision precision_;
};

}  // namespace polygrad

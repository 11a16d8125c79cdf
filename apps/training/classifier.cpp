#include "apps/training/classifier.h"

#include <algorithm>
#include <numeric>

#include "apps/training/evaluate.h"
#include "apps/training/experiment.h"
#include "data/color.h"
#include "data/decode.h"
#include "data/grey_pixels.h"
#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/format.h"
#include "ops/view.h"

namespace polygrad {

Classifier::Classifier(CheckpointInfo info, std::shared_ptr<const Model> model, Precision precision)
    : info_(std::move(info)), model_(std::move(model)), precision_(precision) {}

Classifier Classifier::load(const std::string& checkpoint, const std::string& weights, Device device) {
  const std::string folder = find_checkpoint(checkpoint);
  CheckpointInfo info = read_checkpoint_info(folder);
  std::unique_ptr<Model> model =
      build_model(info.config, static_cast<std::int64_t>(info.class_names.size()), info.preprocessing);
  load_checkpoint_weights(folder, weights.empty() ? info.config.text("eval.weights") : weights, *model);
  model->to(device);
  synchronize(device);  // any thread may use it from now on
  const Precision trained = precision_named(info.config.text("train.precision"));
  const Precision precision = precision_obstacle(trained, device).empty() ? trained : Precision::f32;
  return Classifier(std::move(info), std::move(model), precision);
}

Tensor Classifier::logits(const Tensor& images) const {
  const NoGradGuard no_grad;
  const PrecisionGuard precision(precision_, model_->device());
  return model_->forward(images.to(model_->device())).to(DType::f32).to(Device::cpu()).contiguous();
}

void Classifier::refuse_texts() const {
  if (!info_.preprocessing.of_tokens() || info_.preprocessing.vocabulary == kGreyVocabulary) return;
  throw ConfigError(format("[classifier] {} reads texts (vocabulary {}), not pictures; evaluate it with --eval",
                           info_.config.text("model.name"), info_.preprocessing.vocabulary));
}

Tensor Classifier::prepare(const Tensor& image, const std::string& name) const {
  refuse_texts();
  if (info_.preprocessing.of_tokens()) return grey_tokens(image, name);
  Tensor prepared = image;
  if (image.defined() && image.dim() == 3 && image.dtype() == DType::u8) {
    if (info_.preprocessing.channels == 1) prepared = to_grey(image);
    if (info_.preprocessing.channels == 3) prepared = grey_to_rgb(image);
  }
  Generator unused;
  return evaluation_transform(info_.preprocessing)(prepared, unused);
}

std::vector<ClassScore> Classifier::rank(const Tensor& prepared, std::int64_t top) const {
  Shape shape = prepared.shape();
  shape.insert(0, 1);
  const Tensor row = logits(reshape(prepared, shape));
  const std::int64_t classes = row.size(1);
  const std::vector<double> probability = probabilities(row.data<float>(), classes);
  std::vector<std::int64_t> order(static_cast<std::size_t>(classes));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return probability[static_cast<std::size_t>(a)] > probability[static_cast<std::size_t>(b)];
  });
  std::vector<ClassScore> scores;
  for (std::int64_t i = 0; i < std::min(top, classes); ++i) {
    const std::int64_t k = order[static_cast<std::size_t>(i)];
    const auto at = static_cast<std::size_t>(k);
    // A model may have more outputs than the data had classes.
    scores.push_back(
        {at < info_.class_names.size() ? info_.class_names[at] : format("class {}", k), k, probability[at]});
  }
  return scores;
}

std::vector<ClassScore> Classifier::predict(const Tensor& image, std::int64_t top) const {
  return rank(prepare(image, "the picture"), top);
}

std::vector<ClassScore> Classifier::predict(const std::string& path, std::int64_t top) const {
  refuse_texts();  // before the file is opened: it may be a text
  return rank(prepare(read_image(path, {.exif = info_.preprocessing.exif}), path), top);
}

}  // namespace polygrad

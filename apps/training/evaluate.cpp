#include "apps/training/evaluate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "apps/training/pictures.h"
#include "apps/training/text_table.h"
#include "data/augment.h"
#include "data/loader.h"
#include "data/png.h"
#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"
#include "engine/prefetch.h"

namespace polygrad {

namespace {

// What one row of logits says about its label.
struct RowResult {
  double loss = 0;
  std::int64_t predicted = 0;
  double probability = 0;
  std::int64_t rank = 0;  // how many classes come before the label
};

RowResult judge(const float* logits, std::int64_t classes, std::int64_t label) {
  RowResult row;
  double largest = -std::numeric_limits<double>::infinity();
  bool valid = true;
  for (std::int64_t k = 0; k < classes; ++k) {
    valid = valid && !std::isnan(logits[k]);
    if (logits[k] > largest) {
      largest = logits[k];
      row.predicted = k;
    }
  }
  double sum = 0;
  for (std::int64_t k = 0; k < classes; ++k) sum += std::exp(static_cast<double>(logits[k]) - largest);
  row.loss = std::log(sum) + largest - static_cast<double>(logits[label]);
  row.probability = 1 / sum;
  for (std::int64_t k = 0; k < classes; ++k) {
    if (logits[k] > logits[label] || (logits[k] == logits[label] && k < label)) ++row.rank;
  }
  if (!valid) row.rank = classes;
  return row;
}

}  // namespace

ImageTransform evaluation_transform(const Preprocessing& preprocessing) {
  return ImageTransform({.mean = preprocessing.mean,
                         .stddev = preprocessing.stddev,
                         .height = preprocessing.height,
                         .width = preprocessing.width,
                         .resize = preprocessing.resize,
                         .filter = parse_filter(preprocessing.filter)});
}

std::vector<double> probabilities(const float* logits, std::int64_t classes) {
  const float largest = *std::max_element(logits, logits + classes);
  std::vector<double> result;
  double sum = 0;
  for (std::int64_t k = 0; k < classes; ++k) {
    result.push_back(std::exp(static_cast<double>(logits[k]) - static_cast<double>(largest)));
    sum += result.back();
  }
  for (double& value : result) value /= sum;
  return result;
}

namespace {

// A batch on its way to the model.
struct Travelling {
  std::optional<Batch> batch;
  Prefetch input;
  Travelling(Loader& loader, Device device) : batch(loader.next()) {
    if (batch && batch->size() > 0) input = Prefetch(batch->input(), batch->input_place(device));
  }
};

}  // namespace

EvalResult evaluate(const Model& model, std::shared_ptr<const Dataset> dataset, const Preprocessing& preprocessing,
                    const EvalOptions& options, std::vector<Prediction>* predictions) {
  const NoGradGuard no_grad;
  const Device device = model.device();
  const PrecisionGuard precision(options.precision, device);
  Loader loader(dataset, {.sampler = {.batch_size = options.batch_size,
                                      .shuffle = false,
                                      .drop_last = options.drop_last && dataset->size() >= options.batch_size},
                          .workers = options.workers,
                          .bad_sample = options.bad_sample,
                          .transform = evaluation_transform(preprocessing)});
  const std::int64_t classes = model.num_classes();  // may be more than the data's
  if (classes < dataset->classes()) {
    throw ValueError(format("[evaluate] a model with {} classes on data with {}", classes, dataset->classes()));
  }
  EvalResult result;
  double loss = 0;
  std::int64_t first = 0, fifth = 0;
  for (Travelling next(loader, device); next.batch;) {
    if (options.stop.stop_requested()) return {.stopped = true};
    const std::optional<Batch> batch = std::move(next.batch);
    const Tensor input = next.input.get();
    const Tensor scores = input.defined() ? model.forward(input).to(DType::f32) : Tensor();
    next = Travelling(loader, device);  // while a GPU works
    if (batch->size() == 0) continue;   // all of it dropped
    const Tensor logits = scores.to(Device::cpu()).contiguous();
    const float* rows = logits.data<float>();
    const std::int64_t* labels = batch->labels.data<std::int64_t>();
    for (std::int64_t i = 0; i < batch->size(); ++i) {
      const RowResult row = judge(rows + i * classes, classes, labels[i]);
      loss += row.loss;
      first += row.rank == 0;
      fifth += row.rank < 5;
      if (predictions)
        predictions->push_back(
            {batch->indices[static_cast<std::size_t>(i)], labels[i], row.predicted, row.probability});
    }
    result.count += batch->size();
  }
  result.skipped = loader.bad_samples();
  if (result.count == 0) throw DataError(format("[evaluate] none of the {} samples can be used", dataset->size()));
  const double count = static_cast<double>(result.count);
  result.loss = loss / count;
  result.top1 = 100 * static_cast<double>(first) / count;
  result.top5 = classes > 5 ? 100 * static_cast<double>(fifth) / count : std::numeric_limits<double>::quiet_NaN();
  return result;
}

double chance_level(const Dataset& dataset) {
  const std::vector<std::int64_t> counts = class_counts(dataset);
  return 100.0 * static_cast<double>(*std::max_element(counts.begin(), counts.end())) /
         static_cast<double>(std::max<std::int64_t>(dataset.size(), 1));
}

MetricsRow eval_row(const std::string& split, std::int64_t step, double epoch, const EvalResult& result) {
  MetricsRow row("eval");
  row.add("split", split).add("step", step).add("epoch", epoch).add("loss", result.loss).add("top1", result.top1);
  if (!std::isnan(result.top5)) row.add("top5", result.top5);
  row.add("count", result.count);
  if (result.skipped > 0) row.add("skipped", result.skipped);
  return row;
}

void write_predictions(const std::string& folder, const Dataset& dataset, const std::vector<Prediction>& predictions) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) throw IoError(format("[evaluate] {} can't be made: {}", folder, failure.message()));
  std::vector<std::string> names = dataset.class_names();
  for (const Prediction& p : predictions) {  // a model may know more classes than the data set
    while (static_cast<std::int64_t>(names.size()) <= p.predicted) names.push_back(format("class {}", names.size()));
  }
  const std::size_t classes = names.size();
  std::vector<std::int64_t> confusion(classes * classes);
  std::string list = "path,label,predicted,probability\n";
  for (const Prediction& p : predictions) {
    const auto label = static_cast<std::size_t>(p.label), predicted = static_cast<std::size_t>(p.predicted);
    ++confusion[label * classes + predicted];
    list += format("{},{},{},{:.6f}\n", csv_field(dataset.describe(p.index)), csv_field(names[label]),
                   csv_field(names[predicted]), p.probability);
  }
  std::string per_class = "class,count,correct,accuracy\n", matrix = "label";
  for (const std::string& name : names) matrix += "," + csv_field(name);
  matrix += "\n";
  for (std::size_t c = 0; c < classes; ++c) {
    std::int64_t count = 0;
    matrix += csv_field(names[c]);
    for (std::size_t k = 0; k < classes; ++k) {
      count += confusion[c * classes + k];
      matrix += format(",{}", confusion[c * classes + k]);
    }
    matrix += "\n";
    const std::int64_t correct = confusion[c * classes + c];
    per_class += format(
        "{},{},{},{}\n", csv_field(names[c]), count, correct,
        count ? format("{:.2f}", 100.0 * static_cast<double>(correct) / static_cast<double>(count)) : std::string());
  }
  write_file_atomically(folder + "/predictions.csv", list);
  write_file_atomically(folder + "/per_class.csv", per_class);
  write_file_atomically(folder + "/confusion.csv", matrix);
  write_png(folder + "/confusion.png", confusion_picture(confusion, names));
}

}  // namespace polygrad

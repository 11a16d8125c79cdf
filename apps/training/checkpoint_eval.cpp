#include "apps/training/checkpoint_eval.h"

#include "apps/training/device.h"
#include "apps/training/experiment.h"
#include "apps/training/precision.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

CheckpointEval evaluate_checkpoint(const std::string& checkpoint, const CheckpointInfo& info, const Config& config) {
  CheckpointEval eval;
  eval.info = info;
  eval.device = choose_device(config);
  const Preprocessing& input = info.preprocessing;
  DataOptions options = data_options(config);
  options.exif = input.exif;
  options.grey = input.channels == 1;
  eval.data = open_eval_data(options, config.is_null("eval.split") ? "" : config.text("eval.split"), info.class_names,
                             info.data_fingerprint);
  const EvalData& data = eval.data;
  if (data.towers > 0 || input.of_tokens()) {
    if (data.towers != input.towers || data.length != input.length || data.vocabulary != input.vocabulary) {
      throw DataError(
          format("[eval] the data's samples are {} x {} tokens of '{}', the checkpoint's {} x {} of '{}' "
                 "(towers, length, vocabulary)",
                 data.towers, data.length, data.vocabulary, input.towers, input.length, input.vocabulary));
    }
  } else if (data.channels != input.channels ||
             (!data.resizable && (data.height != input.height || data.width != input.width))) {
    throw DataError(
        format("[eval] the data's images are {} x {} x {}, the checkpoint's {} x {} x {} (channels, height, width)",
               data.channels, data.height, data.width, input.channels, input.height, input.width));
  }
  const std::unique_ptr<Model> model = build_model(config, static_cast<std::int64_t>(info.class_names.size()), input);
  load_checkpoint_weights(checkpoint, config.text("eval.weights"), *model);
  model->to(eval.device);
  // As the run computed, where this machine can: the weights are f32 anyway.
  eval.precision = precision_named(config.text("train.precision"));
  eval.precision_note = precision_obstacle(eval.precision, eval.device);
  if (!eval.precision_note.empty()) eval.precision = Precision::f32;
  const Tf32Guard tf32(config.flag("train.tf32"));
  eval.result = evaluate(*model, data.dataset, input,
                         {.batch_size = config.integer("train.batch_size"),
                          .workers = static_cast<int>(config.integer("data.workers")),
                          .drop_last = config.flag("eval.drop_last"),
                          .precision = eval.precision,
                          .bad_sample = bad_sample_in_evaluation(config)},
                         &eval.predictions);
  eval.epoch = static_cast<double>(info.state.position.epoch);
  if (info.state.batches_per_epoch > 0) {
    eval.epoch += static_cast<double>(info.state.position.batch) / static_cast<double>(info.state.batches_per_epoch);
  }
  return eval;
}

}  // namespace polygrad

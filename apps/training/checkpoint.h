// Checkpoints: everything a run needs to go on, as data. Format version 1.
//
//   checkpoints/step-000500/model.safetensors   the weights that are trained, under the model's names
//                           state.safetensors   "optimizer.<part>.<parameter>", "optimizer.step.<parameter>",
//                                               "ema.<parameter>"
//                           state.json          the rest: progress, best, configuration, classes, preprocessing,
//                                               versions, and the hashes that tell the files of one save from others
//
// Where this stands: above run_folder.h (where and how a checkpoint appears), below trainer.h.
// A run resumed from one ends with the bytes of a run that was never stopped: every random number is named by (seed,
// step, sample), so no generator's state is needed. Read next: checkpoint.cpp, docs/checkpoints.md.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/training/config.h"
#include "apps/training/loss_scale.h"
#include "apps/training/run_folder.h"
#include "apps/training/skipped_steps.h"
#include "data/sampler.h"
#include "engine/shape.h"
#include "models/model.h"
#include "models/optim/ema.h"
#include "models/optim/optimizer.h"

namespace polygrad {

// How a sample becomes the model's input in evaluation; kept with the weights, so that evaluation is what was trained.
struct Preprocessing {
  // Of images:
  std::int64_t channels = 0, height = 0, width = 0;
  std::vector<double> mean, stddev;  // of pixels scaled to [0, 1]
  std::int64_t resize = 0;           // of the shorter side, before the centre crop to height x width; 0: none
  std::string filter = "bicubic";    // of the resize
  bool exif = false;                 // files are turned as their EXIF orientation says
  // Of tokens; towers is 0 for images. The vocabulary ("listops", "bytes", "grey") is fixed by its name.
  std::int64_t towers = 0, length = 0;
  std::string vocabulary = {};
  bool of_tokens() const { return towers > 0; }
  Shape input_shape() const { return of_tokens() ? Shape{towers, length} : Shape{channels, height, width}; }
  bool operator==(const Preprocessing&) const = default;
};

// What was measured since the last train row: a row that a resume completes is the row that would have been written.
struct RunningMeans {
  double loss_sum = 0;
  std::int64_t steps = 0;                 // those whose loss is finite
  std::int64_t correct = 0, counted = 0;  // training samples with plain labels

  void add(double loss, std::int64_t correct_ones, std::int64_t of) {
    if (!std::isfinite(loss)) return;
    loss_sum += loss;
    ++steps;
    correct += correct_ones;
    counted += of;
  }
};

// What a stop cut off behind the step, to be done first when the run goes on.
enum class Pending : std::uint8_t {
  none,
  probe,
  evaluation  // and the probe
};
std::string to_string(Pending pending);

struct TrainingState {
  std::int64_t step = 0;               // optimizer steps done
  DataPosition position;               // the next batch
  std::int64_t batches_per_epoch = 0;  // 0: not known (checkpoints of early versions)
  std::int64_t ema_updates = 0;
  std::optional<double> best_top1;  // percent, on the validation split
  std::int64_t best_step = 0;
  Pending pending = Pending::none;
  RunningMeans since_row;
  SkippedSteps skipped;
  LossScale loss_scale;  // of f16
  double seconds = 0;    // wall time of training so far, over all resumes
};

// What a checkpoint says about its run.
struct CheckpointInfo {
  Config config;
  std::vector<std::string> class_names;
  Preprocessing preprocessing;
  std::string data_fingerprint;
  TrainingState state;
};

// Writes the checkpoint of state.step into the run folder and makes it the latest one. `ema` may be null. Throws
// IoError (disk full: says so; older checkpoints and links stay as they were) and NumericError where a weight, moment
// or average is not finite: a checkpoint never holds a NaN.
void save_checkpoint(RunFolder& folder, const CheckpointInfo& info, const Model& model, const Optimizer& optimizer,
                     const Ema* ema);

// The part that is JSON. `checkpoint` is a checkpoint folder. Throws IoError naming the file: missing, damaged, of a
// newer format, or of another step than the folder's name says.
CheckpointInfo read_checkpoint_info(const std::string& checkpoint);

// Throws IoError where model.safetensors is not the file that was saved with state.json.
void check_weights(const std::string& checkpoint);

// Weights alone: `weights` is "raw" or "ema" (ConfigError where the checkpoint has no average). IoError where the file
// is not the one that was saved with state.json.
void load_checkpoint_weights(const std::string& checkpoint, const std::string& weights, Module& model);

// Everything that is tensors, for going on; `ema` is null exactly where the run has none. All files are checked to be
// of one save before anything changes hands (IoError).
void load_checkpoint(const std::string& checkpoint, const CheckpointInfo& info, Module& model, Optimizer& optimizer,
                     Ema* ema);

}  // namespace polygrad

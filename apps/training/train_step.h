// TrainStep: one optimizer step: micro-batches, loss, gradients, clipping, update, average.
//
// Where this stands: the inside of trainer.h's loop; it knows nothing of files or logs.
// The loss of a step is the mean over all its samples, whatever the micro-batches: each micro-batch's summed loss is
// divided by the number of samples of the whole step, so accumulating 4 + 4 + 2 samples gives the gradient of 10 at
// once.
// On a GPU the host waits once a step, when the backward is done: for losses, hits and the gradients' norm together.
// Meanwhile the next batch is made and sent; the update and the next forward are started without another wait.
// In f16 a step whose gradients overflow is skipped (loss_scale.h); with max_skipped, so is each step that is not
// finite.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/training/communicator.h"
#include "apps/training/loss_scale.h"
#include "apps/training/skipped_steps.h"
#include "data/loader.h"
#include "data/mix.h"
#include "engine/prefetch.h"
#include "models/model.h"
#include "models/optim/ema.h"
#include "models/optim/optimizer.h"
#include "ops/precision.h"

namespace polygrad {

struct TrainStepOptions {
  std::uint64_t seed = 0;       // of the run: dropout masks and mixing are named by it and the step
  std::int64_t accumulate = 1;  // micro-batches of a step; the epoch's last step may have fewer
  double clip_grad = 0;         // largest global norm; 0: no clipping
  // Steps whose loss or gradients are not finite: at most so many in a row are skipped. 0: the first one throws.
  std::int64_t max_skipped = 0;
  MixOptions mix = {};  // its label_smoothing also holds without mixing
  Precision precision = Precision::f32;
  bool capture = false;  // forward and backward of a shape that comes again start as one CUDA graph (capture_obstacle)
  bool must_capture = false;  // where capturing fails, so does the step; else it and all later ones are plain
};

// Why steps of this model can't be captured; "" where they can. Their results have the same bits either way.
std::string capture_obstacle(const Model& model, std::int64_t accumulate);

// The message of a NumericError: "[train] diverged at step 7: the loss is nan, with lr ...". `step` counts from 1.
std::string divergence(std::int64_t step, const std::string& what, double lr, double grad_norm,
                       const std::string& where, const std::string& remedy);

struct StepResult {
  double loss = 0;           // mean over the step's samples
  double grad_norm = 0;      // before clipping, without the loss scale
  bool skipped = false;      // loss or gradients were not finite: weights, optimizer and average are as before the step
  std::int64_t samples = 0;  // of all ranks
  std::int64_t correct = 0;  // right by argmax, of `counted`
  std::int64_t counted = 0;  // samples with plain labels: 0 where targets are mixed
  DataPosition next;         // the batch after the step's last
  std::string not_captured;  // why capturing was given up in this step; "" where it was not
};

class TrainStep {
 public:
  // All references must outlive this; `ema` may be null. The model's device is where the step is computed. `skipped`
  // is where steps that are left out are counted. `loss_scale` is needed for f16 (ValueError), and changed by its
  // steps; it may be null otherwise.
  TrainStep(const Model& model, Optimizer& optimizer, Ema* ema, Loader& loader, Communicator& communicator,
            TrainStepOptions options, SkippedSteps& skipped, LossScale* loss_scale = nullptr);
  // Step number `step` (from 0), taking the loader's next batches, which must begin at `position`. Throws NumericError
  // where loss or gradients are not finite, or so large that f32 can't square them, and the step can't be skipped (in
  // f16: where gradients are not finite, however small the loss scale has become). It names step, learning rate,
  // gradient norm and where the first NaN or infinity arose; weights and optimizer are then as before the step.
  StepResult run(std::int64_t step, DataPosition position, const ScheduleValue& schedule);

  ~TrainStep();

 private:
  struct Captured;
  // A batch on its way to the model's device.
  struct Micro {
    std::int64_t step = 0;
    DataPosition position;
    std::int64_t samples = 0;
    std::vector<std::int64_t> indices;  // of the samples in the data set
    bool mixed = false;
    Prefetch input, targets;  // targets: distributions where mixed, else class ids
    ForwardContext context;
  };
  Micro load(std::int64_t step, DataPosition begin, std::int64_t micro);
  // The same, from what look_ahead has made where it did.
  Micro take(std::int64_t step, DataPosition begin, std::int64_t micro);
  void look_ahead(std::int64_t step, DataPosition begin, std::int64_t micro);
  // Forward and backward of the step's micro-batch of this number; its loss and hits are noted.
  void learn(const Micro& micro, std::int64_t number, double share);
  // The same by a graph, where the batch is like the graph's, or like the last one; false: not done.
  bool learn_by_graph(const Micro& micro, double share);
  void learn_now(const Tensor& input, const Tensor& targets, const Micro& micro, std::int64_t number, double share);
  void note(std::int64_t at, const Tensor& number);
  Tensor forward(const Tensor& input, const Micro& micro) const;
  // Summed over the micro-batch.
  Tensor loss_of(const Tensor& logits, const Tensor& targets, bool mixed) const;
  // Skips the step, or throws.
  void not_finite(const std::string& what, std::int64_t step, const ScheduleValue& schedule,
                  const std::vector<Micro>& micros, double share, StepResult& result);
  struct Trace {
    std::string where, remedy;
  };
  // Where the first NaN or infinity of a step arose.
  Trace trace(const std::vector<Micro>& micros, double share);

  const Model& model_;
  Optimizer& optimizer_;
  Ema* ema_;
  Loader& loader_;
  Communicator& communicator_;
  TrainStepOptions options_;
  SkippedSteps& skipped_;
  LossScale* loss_scale_;
  Device device_;
  Tensor notes_;  // f64, on the device: each micro-batch's loss and hits, and the gradients' squares; read together
  std::unique_ptr<Captured> captured_;
  std::string not_captured_;  // of the step under way
  std::optional<Micro> ahead_;
  std::exception_ptr ahead_failure_;  // of making it: for the step that it belongs to
};

}  // namespace polygrad

// TrainStep: one optimizer step: micro-batches, loss, gradients, clipping, update, average.
//
// Where this stands: the inside of trainer.h's loop; it knows nothing of files or logs.
// The loss of a step is the mean over all its samples, whatever the micro-batches: each micro-batch's summed loss is
// divided by the number of samples of the whole step, so accumulating 4 + 4 + 2 samples gives the gradient of 10 at
// once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/training/communicator.h"
#include "data/loader.h"
#include "data/mix.h"
#include "models/model.h"
#include "models/optim/ema.h"
#include "models/optim/optimizer.h"
#include "ops/precision.h"

namespace polygrad {

struct TrainStepOptions {
  std::uint64_t seed = 0;       // of the run: dropout masks and mixing are named by it and the step
  std::int64_t accumulate = 1;  // micro-batches of a step; the epoch's last step may have fewer
  double clip_grad = 0;         // largest global norm; 0: no clipping
  MixOptions mix = {};          // its label_smoothing also holds without mixing
  Precision precision = Precision::f32;
};

struct StepResult {
  double loss = 0;           // mean over the step's samples
  double grad_norm = 0;      // before clipping
  std::int64_t samples = 0;  // of all ranks
  std::int64_t correct = 0;  // right by argmax, of `counted`
  std::int64_t counted = 0;  // samples with plain labels: 0 where targets are mixed
  DataPosition next;         // the batch after the step's last
};

class TrainStep {
 public:
  // All references must outlive this; `ema` may be null.
  TrainStep(const Model& model, Optimizer& optimizer, Ema* ema, Loader& loader, Communicator& communicator,
            TrainStepOptions options);
  // Step number `step` (from 0), taking the loader's next batches, which must begin at `position`. Throws NumericError,
  // saying where the first NaN or infinity arose, where loss or gradients are not finite; weights and optimizer are
  // then as before the step.
  StepResult run(std::int64_t step, DataPosition position, const ScheduleValue& schedule);

 private:
  struct Micro {
    Tensor images, labels, targets;  // targets: of a mixed batch, else undefined
    ForwardContext context;
  };
  Micro prepare(Batch batch, std::int64_t step, std::int64_t micro, std::int64_t first_sample) const;
  Tensor forward(const Micro& micro) const;
  Tensor loss_of(const Micro& micro, const Tensor& logits) const;  // summed over the micro-batch
  [[noreturn]] void diverged(const std::string& what, std::int64_t step, const ScheduleValue& schedule,
                             const std::vector<Micro>& micros, std::int64_t samples);

  const Model& model_;
  Optimizer& optimizer_;
  Ema* ema_;
  Loader& loader_;
  Communicator& communicator_;
  TrainStepOptions options_;
};

}  // namespace polygrad

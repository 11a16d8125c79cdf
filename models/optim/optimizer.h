// Optimizer: turns gradients into new parameter values. The learning rate of each step comes from outside (schedule.h).
//
// Where this stands: above ops/optim_step.h, which has the arithmetic. State is kept and saved by parameter name, so a
// checkpoint is data, whatever the order of groups.
// Read next: adamw.h, sgd.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/safetensors.h"
#include "models/optim/param_groups.h"
#include "models/optim/schedule.h"

namespace polygrad {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // One update of every parameter that has a gradient; the others, and their state, stay as they are. Gradients are
  // multiplied by grad_scale as they are read: clipping without a pass of its own (clip_factor of ops/optim_step.h).
  void step(const ScheduleValue& value, double grad_scale = 1);
  void zero_grad();

  const std::vector<ParamGroup>& groups() const { return groups_; }
  // The gradients that step() would use, in group order: for clipping and checking.
  std::vector<Tensor> gradients() const;

  // The state as tensors, "<part>.<parameter's path>" (say "exp_avg.head.weight"), and "step.<path>" (i64, one
  // element): how often that parameter was updated. Parameters never updated have none.
  NamedTensors export_state() const;
  // The reverse. Everything is checked before anything changes. Throws IoError that lists missing, unexpected and
  // wrongly shaped names together.
  void import_state(const NamedTensors& state);

 protected:
  // `parts`: the names of the state tensors of a parameter, each of the parameter's shape. Throws ValueError for a
  // parameter in two groups, or one that is no leaf with a gradient.
  Optimizer(std::vector<ParamGroup> groups, std::vector<std::string> parts);

  struct Slot {
    Tensor parameter;
    std::string path;
    std::size_t group = 0;
    std::int64_t updates = 0;
    std::vector<Tensor> parts;  // empty before the first update
  };
  // What one step asks for a parameter; slot->updates is already the number of this update, from 1, and the parts exist
  // (zeros at the first).
  struct Update {
    Slot* slot;
    Tensor gradient;
    double lr, weight_decay;
  };
  // Of all parameters that have a gradient, so that those with the same numbers are one kernel call.
  virtual void update(const std::vector<Update>& updates, const ScheduleValue& value, double grad_scale) = 0;
  // Calls apply(first, last) for each run of updates[first ... last) that share lr, weight decay and number of updates.
  static void for_equal(const std::vector<Update>& updates,
                        const std::function<void(std::size_t first, std::size_t last)>& apply);

 private:
  std::vector<ParamGroup> groups_;
  std::vector<std::string> part_names_;
  std::vector<Slot> slots_;
};

}  // namespace polygrad

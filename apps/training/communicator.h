// Communicator: what the processes of one run tell each other. One process today; the trainer asks it all the same, so
// that data-parallel training needs no rewrite.
//
// Where this stands: below trainer.h. The trainer shards the sampler by rank, sums sample counts and losses, averages
// gradients and takes decisions (stop, diverged) through it.
#pragma once

#include <vector>

#include "engine/tensor.h"

namespace polygrad {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world() const = 0;
  // The sum over all ranks, the same bits on each of them.
  virtual double sum(double value) = 0;
  // Each tensor becomes its sum over all ranks, in place, the same bits on each of them.
  virtual void sum(std::vector<Tensor>& tensors) = 0;
};

// The only process of its run: rank 0 of 1, every sum is the value itself.
class SingleProcess : public Communicator {
 public:
  int rank() const override { return 0; }
  int world() const override { return 1; }
  double sum(double value) override { return value; }
  void sum(std::vector<Tensor>&) override {}
};

}  // namespace polygrad

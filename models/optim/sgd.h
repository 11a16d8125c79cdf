// Sgd: stochastic gradient descent with momentum, as torch.optim.SGD.
//
//   g <- g + wd p;  first update: b <- g, then b <- mu b + (1 - dampening) g;  p <- p - lr (nesterov ? g + mu b : b)
//
// The decay is the classic one, added to the gradient. State part: momentum_buffer (none where momentum is 0). A
// schedule's beta1 takes the place of the momentum.
#pragma once

#include "models/optim/optimizer.h"

namespace polygrad {

struct SgdOptions {
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
};

class Sgd : public Optimizer {
 public:
  // Throws ValueError for a momentum outside [0, 1), or Nesterov without momentum or with dampening.
  explicit Sgd(std::vector<ParamGroup> groups, const SgdOptions& options = {});

 private:
  void update(const std::vector<Update>& updates, const ScheduleValue& value, double grad_scale) override;
  SgdOptions options_;
};

}  // namespace polygrad

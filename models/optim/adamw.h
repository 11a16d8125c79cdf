// AdamW: Adam with decoupled weight decay. (Loshchilov and Hutter, 2019; the arithmetic is torch.optim.AdamW's.)
//
//   p <- p (1 - lr wd);  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2
//   p <- p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)          eps stands outside the root
//
// State parts: exp_avg (m), exp_avg_sq (v).
#pragma once

#include "models/optim/optimizer.h"

namespace polygrad {

struct AdamWOptions {
  double beta1 = 0.9;  // replaced by a schedule that gives one
  double beta2 = 0.999;
  double eps = 1e-8;
};

class AdamW : public Optimizer {
 public:
  // Throws ValueError for betas outside [0, 1) or a negative eps.
  explicit AdamW(std::vector<ParamGroup> groups, const AdamWOptions& options = {});

 private:
  void update(const std::vector<Update>& updates, const ScheduleValue& value, double grad_scale) override;
  AdamWOptions options_;
};

}  // namespace polygrad

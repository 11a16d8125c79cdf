#include "apps/bench/op_subjects.h"

#include "engine/factory.h"
#include "engine/generator.h"
#include "ops/binary.h"
#include "ops/copy.h"
#include "ops/dropout.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "ops/optim_step.h"
#include "ops/patch.h"
#include "ops/reduce.h"
#include "ops/softmax.h"
#include "ops/unary.h"
#include "ops/view.h"

namespace polygrad::bench {
namespace {

using Run = std::function<Tensor()>;

constexpr const char* kHidden = "8224x768";       // of the MLP, ViT-Tiny, batch 32
constexpr const char* kTokens = "8224x192";       // of the residual stream
constexpr const char* kScores = "24672x257";      // of attention, three heads
constexpr const char* kParameters = "5526x1000";  // as many as ViT-Tiny has

// Where x is.
Tensor random(const Tensor& x, const Shape& shape, std::uint64_t seed) {
  Generator generator(seed);
  return randn(shape, {.device = x.device(), .generator = &generator});
}

OpSubject unary(const char* name, Tensor (*op)(const Tensor&), double backward_tensors = 3) {
  return {"unary", name, kHidden, 2, backward_tensors, [op](const Tensor& x) -> Run { return [=] { return op(x); }; }};
}

// Whose second argument is a tensor of x's shape without a gradient.
OpSubject binary(const char* name, Tensor (*op)(const Tensor&, const Tensor&), double backward_tensors) {
  return {"binary", name, kHidden, 3, backward_tensors, [op](const Tensor& x) -> Run {
            return [=, other = random(x, x.shape(), 2)] { return op(x, other); };
          }};
}

std::vector<OpSubject> make_subjects() {
  std::vector<OpSubject> list = {
      unary("neg", neg, 2),
      unary("exp", exp),
      unary("exp_neg", exp_neg),
      unary("tanh", tanh),
      unary("sigmoid", sigmoid),
      unary("relu", relu),
      unary("elu", elu),
      unary("gelu", gelu),
      unary("gelu_tanh", gelu_tanh),
      unary("silu", silu),
      unary("softplus", softplus),
      {"unary", "pow3", kHidden, 2, 3, [](const Tensor& x) -> Run { return [=] { return pow(x, 3); }; }},
      binary("add", add, 2),
      binary("mul", mul, 3),
      {"binary", "add_row", kHidden, 2, 2,
       [](const Tensor& x) -> Run { return [=, row = random(x, {x.shape().back()}, 2)] { return add(x, row); }; }},
      {"dropout", "dropout", kTokens, 2, 2,
       [](const Tensor& x) -> Run {
         return [=] {
           Generator generator(1);
           return dropout(x, 0.1, generator);
         };
       }},
      {"dropout", "drop_path", "32x257x192", 2, 2,
       [](const Tensor& x) -> Run {
         return [=] {
           Generator generator(1);
           return drop_path(x, 0.1, generator);
         };
       }},
      {"dropout", "residual_add", kTokens, 3, 2,
       [](const Tensor& x) -> Run {
         return [=, branch = random(x, x.shape(), 2)] { return residual_add(x, branch); };
       }},
      {"norm", "layer_norm", kTokens, 2, 3,
       [](const Tensor& x) -> Run {
         const Shape row{x.shape().back()};
         return [=, weight = random(x, row, 2).set_requires_grad(true),
                 bias = random(x, row, 3).set_requires_grad(true)] { return layer_norm(x, weight, bias, 1e-6); };
       }},
      {"softmax", "softmax", kScores, 2, 3, [](const Tensor& x) -> Run { return [=] { return softmax(x, -1); }; }},
      {"softmax", "log_softmax", kScores, 2, 3,
       [](const Tensor& x) -> Run { return [=] { return log_softmax(x, -1); }; }},
      {"loss", "cross_entropy", "8224x200", 1, 2,
       [](const Tensor& x) -> Run {
         Generator generator(2);
         std::vector<std::int64_t> classes(static_cast<std::size_t>(x.numel() / x.shape().back()));
         for (std::int64_t& one : classes) one = generator.integer(0, x.shape().back());
         return [=, rows = Tensor::from_vector(classes).to(x.device())] {
           return cross_entropy(reshape(x, {rows.numel(), x.shape().back()}), rows);
         };
       }},
      {"loss", "cross_entropy_soft", "8224x200", 2, 3,
       [](const Tensor& x) -> Run {
         return [=, target = softmax(random(x, x.shape(), 2), -1)] { return cross_entropy_soft(x, target); };
       }},
      {"reduce", "sum", kHidden, 1, 1, [](const Tensor& x) -> Run { return [=] { return sum(x); }; }},
      {"reduce", "sum_rows", kHidden, 1, 1, [](const Tensor& x) -> Run { return [=] { return sum(x, {0}); }; }},
      {"reduce", "mean_columns", kHidden, 1, 1, [](const Tensor& x) -> Run { return [=] { return mean(x, {-1}); }; }},
      {"copy", "clone", kHidden, 2, 2, [](const Tensor& x) -> Run { return [=] { return x.clone(); }; }},
      {"copy", "transpose", kHidden, 2, 2,
       [](const Tensor& x) -> Run { return [=] { return transpose(x, -1, -2).contiguous(); }; }},
      {"copy", "cat", kHidden, 2, 2,
       [](const Tensor& x) -> Run {
         return [=, row = random(x, slice(x, 0, 0, 1).shape(), 2)] { return cat({row, x}, 0); };
       }},
      {"patch", "patch_unfold", "128x3x64x64", 2, 2,
       [](const Tensor& x) -> Run { return [=] { return patch_unfold(x, 4, 4); }; }},
  };
  // What optimizers do, in place and outside of the graph: reads and writes of parameter, gradient and moments.
  const auto in_place = [&](const char* name, double tensors, std::function<Run(const Tensor&)> prepare) {
    list.push_back({"optim_step", name, kParameters, tensors, 0, std::move(prepare)});
  };
  in_place("adamw_step", 7, [](const Tensor& x) -> Run {
    return [=, p = x.detach().clone(), m = zeros(x.shape(), x.options()), v = zeros(x.shape(), x.options()),
            step = std::int64_t{0}]() mutable {
      adamw_step(p, x.detach(), m, v, {.lr = 1e-4, .step = ++step});
      return Tensor();
    };
  });
  in_place("sgd_step", 5, [](const Tensor& x) -> Run {
    return [=, p = x.detach().clone(), buffer = zeros(x.shape(), x.options())] {
      sgd_step(p, x.detach(), buffer, {.lr = 1e-4, .momentum = 0.9});
      return Tensor();
    };
  });
  in_place("global_norm", 1, [](const Tensor& x) -> Run {
    return [=] {
      global_norm({x.detach()});
      return Tensor();
    };
  });
  in_place("ema_update", 3, [](const Tensor& x) -> Run {
    return [=, average = x.detach().clone()] {
      ema_update(average, x.detach(), 0.999);
      return Tensor();
    };
  });
  return list;
}

}  // namespace

const std::vector<OpSubject>& op_subjects() {
  static const std::vector<OpSubject> list = make_subjects();
  return list;
}

}  // namespace polygrad::bench

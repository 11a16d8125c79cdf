#include "ops/loss.h"

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/workspace.h"
#include "ops/check.h"
#include "ops/index.h"
#include "ops/kernels/loss.h"
#include "ops/view.h"

namespace polygrad {
namespace {

// The entry of the table of x's device; throws where that has none.
template <class Kernel>
Kernel kernel_of(const char* op, const Tensor& x, Kernel LossKernels::*entry) {
  const DeviceType device = x.device().type;
  const Kernel kernel = loss_kernels(device).*entry;
  require_kernel(op, kernel != nullptr, device);
  return kernel;
}

// The checks that both cross-entropies share, and the options as their kernels take them.
CrossEntropyTerms check_cross_entropy(const char* op, const Tensor& logits, const Tensor& target,
                                      const CrossEntropyOptions& options) {
  check_floating(op, logits, "logits");
  if (logits.dim() < 2) {
    throw ShapeError(format("[{}] logits {}; expected (batch, classes) or (batch, classes, places...)", op,
                            to_string(logits.shape())));
  }
  check_same_device(op, logits, target, "target");
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1)) {
    throw ValueError(format("[{}] label_smoothing {}; expected 0 <= e <= 1", op, options.label_smoothing));
  }
  if (options.class_weight.defined()) {
    check_same_dtype(op, logits, options.class_weight);
    check_same_device(op, logits, options.class_weight);
    if (options.class_weight.shape() != Shape{logits.shape()[1]}) {
      throw ShapeError(format("[{}] class_weight {} for logits {}; expected ({})", op,
                              to_string(options.class_weight.shape()), to_string(logits.shape()), logits.shape()[1]));
    }
  }
  no_backward(op, {target, options.class_weight});
  return {.label_smoothing = options.label_smoothing,
          .ignore_index = options.ignore_index,
          .reduction = {options.reduction != Reduction::none, options.reduction == Reduction::mean}};
}

// (N, K, d...) as (N, K, S), outside the graph.
Tensor rows_of(const Tensor& logits) {
  std::int64_t places = 1;
  for (int i = 2; i < logits.dim(); ++i) places *= logits.shape()[i];
  return reshape(kernel_input(logits), {logits.shape()[0], logits.shape()[1], places});
}

TensorRef optional_ref(const Tensor& tensor) { return tensor.defined() ? tensor.ref() : TensorRef{}; }

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& options) {
  const CrossEntropyTerms terms = check_cross_entropy("cross_entropy", logits, target, options);
  Shape expected = logits.shape();
  expected.erase(1);
  if (target.shape() != expected) {
    throw ShapeError(
        format("[cross_entropy] target {} for logits {}; expected class ids {}; for distributions use "
               "cross_entropy_soft",
               to_string(target.shape()), to_string(logits.shape()), to_string(expected)));
  }
  detail::check_indices("cross_entropy", "target", target, logits.shape()[1], &options.ignore_index);

  const Tensor x = rows_of(logits), ids = kernel_input(target);
  const Tensor weight = options.class_weight.defined() ? kernel_input(options.class_weight) : Tensor();
  const DType f64 = DType::f64;
  Tensor y = Tensor::empty(terms.reduction.reduce ? Shape{} : expected, logits.options());
  Tensor log_sum_exp = Tensor::empty({x.shape()[0], x.shape()[2]}, {.dtype = f64, .device = logits.device()});
  Tensor divisor = Tensor::empty({1}, {.dtype = f64, .device = logits.device()});
  {
    Workspace workspace(logits.device());
    kernel_of("cross_entropy", logits, &LossKernels::cross_entropy)(workspace, x.ref(), ids.ref(), optional_ref(weight),
                                                                    terms, y.ref(), log_sum_exp.ref(), divisor.ref());
  }
  return record("cross_entropy", y, {logits},
                [=, from = logits.shape(), saved_x = SavedTensor(x, "logits"), saved_ids = SavedTensor(ids, "target"),
                 saved_weight = SavedTensor(weight, "class_weight")](const Tensor& g, NeededMask) -> Gradients {
                  const Tensor rows = saved_x.get(), gy = kernel_input(g), w = saved_weight.get();
                  Tensor gx = Tensor::empty(rows.shape(), rows.options());
                  Workspace workspace(g.device());
                  kernel_of("cross_entropy", g, &LossKernels::cross_entropy_backward)(
                      workspace, gy.ref(), rows.ref(), saved_ids.get().ref(), optional_ref(w), terms, log_sum_exp.ref(),
                      divisor.ref(), gx.ref());
                  return {reshape(gx, from)};
                });
}

Tensor cross_entropy_soft(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& options) {
  const CrossEntropyTerms terms = check_cross_entropy("cross_entropy_soft", logits, target, options);
  check_same_dtype("cross_entropy_soft", logits, target);
  if (target.shape() != logits.shape()) {
    throw ShapeError(
        format("[cross_entropy_soft] target {} for logits {}; expected equal shapes; for class ids use "
               "cross_entropy",
               to_string(target.shape()), to_string(logits.shape())));
  }
  const Tensor x = rows_of(logits), t = rows_of(target);
  const Tensor weight = options.class_weight.defined() ? kernel_input(options.class_weight) : Tensor();
  Shape places = logits.shape();
  places.erase(1);
  Tensor y = Tensor::empty(terms.reduction.reduce ? Shape{} : places, logits.options());
  Tensor log_sum_exp = Tensor::empty({x.shape()[0], x.shape()[2]}, {.dtype = DType::f64, .device = logits.device()});
  {
    Workspace workspace(logits.device());
    kernel_of("cross_entropy_soft", logits, &LossKernels::cross_entropy_soft)(
        workspace, x.ref(), t.ref(), optional_ref(weight), terms, y.ref(), log_sum_exp.ref());
  }
  return record("cross_entropy_soft", y, {logits},
                [=, from = logits.shape(), saved_x = SavedTensor(x, "logits"), saved_t = SavedTensor(t, "target"),
                 saved_weight = SavedTensor(weight, "class_weight")](const Tensor& g, NeededMask) -> Gradients {
                  const Tensor rows = saved_x.get(), gy = kernel_input(g), w = saved_weight.get();
                  Tensor gx = Tensor::empty(rows.shape(), rows.options());
                  Workspace workspace(g.device());
                  kernel_of("cross_entropy_soft", g, &LossKernels::cross_entropy_soft_backward)(
                      workspace, gy.ref(), rows.ref(), saved_t.get().ref(), optional_ref(w), terms, log_sum_exp.ref(),
                      gx.ref());
                  return {reshape(gx, from)};
                });
}

Tensor mse_loss(const Tensor& x, const Tensor& y, Reduction reduction) {
  check_floating("mse_loss", x);
  check_same_dtype("mse_loss", x, y, "y");
  check_same_device("mse_loss", x, y);
  if (x.shape() != y.shape()) {
    throw ShapeError(format("[mse_loss] shapes differ: x {}, y {}; nothing is broadcast here; use expand",
                            to_string(x.shape()), to_string(y.shape())));
  }
  const LossReduction terms{reduction != Reduction::none, reduction == Reduction::mean};
  const Tensor left = kernel_input(x), right = kernel_input(y);
  Tensor out = Tensor::empty(terms.reduce ? Shape{} : x.shape(), x.options());
  {
    Workspace workspace(x.device());
    kernel_of("mse_loss", x, &LossKernels::mse)(workspace, left.ref(), right.ref(), terms, out.ref());
  }
  return record("mse_loss", out, {x, y},
                [terms, saved_x = SavedTensor(left, "x"), saved_y = SavedTensor(right, "y")](
                    const Tensor& g, NeededMask needed) -> Gradients {
                  const Tensor a = saved_x.get(), b = saved_y.get(), gy = kernel_input(g);
                  Workspace workspace(g.device());
                  const auto gradient = [&](double sign) {
                    Tensor gx = Tensor::empty(a.shape(), a.options());
                    kernel_of("mse_loss", g, &LossKernels::mse_backward)(workspace, gy.ref(), a.ref(), b.ref(), terms,
                                                                         sign, gx.ref());
                    return gx;
                  };
                  return {needed[0] ? gradient(1) : Tensor(), needed[1] ? gradient(-1) : Tensor()};
                });
}

std::int64_t counted_targets(const Tensor& target, std::int64_t ignore_index) {
  check_defined("counted_targets", target, "target");
  if (target.dtype() != DType::i64) {
    throw DTypeError(
        format("[counted_targets] target is {}; expected i64; convert with to()", to_string(target.dtype())));
  }
  const Tensor ids = target.to(Device::cpu()).contiguous();
  const std::int64_t* id = ids.data<std::int64_t>();
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < ids.numel(); ++i) count += id[i] != ignore_index;
  return count;
}

}  // namespace polygrad

#include "ops/optim_step.h"

#include <algorithm>
#include <cmath>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/workspace.h"
#include "ops/check.h"
#include "ops/kernels/optim_step.h"

namespace polygrad {
namespace {

struct Named {
  const char* name;
  const Tensor& tensor;
};

// `other` goes with `main`: same shape, dtype and device.
void check_alike(const char* op, const Named& main, const Named& other) {
  check_defined(op, main.tensor, main.name);
  check_defined(op, other.tensor, other.name);
  if (other.tensor.shape() != main.tensor.shape()) {
    throw ShapeError(format("[{}] shapes differ: {} {}, {} {}", op, main.name, to_string(main.tensor.shape()),
                            other.name, to_string(other.tensor.shape())));
  }
  check_same_dtype(op, main.tensor, other.tensor);
  check_same_device(op, main.tensor, other.tensor);
}

void check_contiguous(const char* op, const Named& x) {
  if (!x.tensor.is_contiguous()) {
    throw ValueError(format("[{}] {} {} is not contiguous, and is written in place; make it with contiguous()", op,
                            x.name, to_string(x.tensor.shape())));
  }
}

// The memory of an update's arguments: what is written must lie on nothing else of the whole list, or chunks would run
// into one another.
class Memory {
 public:
  void writes(const Named& x) { add(x, true); }
  void reads(const Named& x) { add(x, false); }
  void check_apart(const char* op) {
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    const Range *reaching = nullptr, *written = nullptr;  // those that end last so far
    for (const Range& range : ranges_) {
      const Range* other = range.written ? reaching : written;
      if (other != nullptr && range.begin < other->end) {
        throw ValueError(format("[{}] {} and {} share memory, and one is written; expected separate tensors, each once",
                                op, other->name, range.name));
      }
      if (reaching == nullptr || range.end > reaching->end) reaching = &range;
      if (range.written && (written == nullptr || range.end > written->end)) written = &range;
    }
  }

 private:
  struct Range {
    const char *begin, *end;
    const char* name;
    bool written;
  };
  void add(const Named& x, bool written) {
    const char* begin = x.tensor.ref().as<const char>();
    const auto bytes = static_cast<std::int64_t>(dtype_size(x.tensor.dtype())) * x.tensor.numel();
    if (bytes > 0) ranges_.push_back({begin, begin + bytes, x.name, written});
  }
  std::vector<Range> ranges_;
};

template <class Number>
void check_number(const char* op, const char* name, Number value, bool valid, const char* expected) {
  if (!valid) throw ValueError(format("[{}] {} = {}; expected {}", op, name, value, expected));
}

bool at_least_zero(double value) { return value >= 0 && std::isfinite(value); }

// The entry of the table of a device; throws where that has none.
template <class Kernel>
Kernel kernel_of(const char* op, Device device, Kernel OptimStepKernels::*entry) {
  const Kernel kernel = optim_step_kernels(device.type).*entry;
  require_kernel(op, kernel != nullptr, device.type);
  return kernel;
}

std::vector<TensorRef> refs_of(const std::vector<Tensor>& tensors) {
  std::vector<TensorRef> refs;
  for (const Tensor& tensor : tensors) refs.push_back(tensor.ref());
  return refs;
}

// The gradients of a list that are there, contiguous.
std::vector<Tensor> present(const char* op, const std::vector<Tensor>& tensors) {
  std::vector<Tensor> found;
  for (const Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    check_floating(op, tensor);
    found.push_back(kernel_input(tensor));
    check_same_device(op, found[0], tensor);
  }
  return found;
}

// What writes each of a list asks of it.
void check_written(const char* op, const char* name, const std::vector<Tensor>& tensors) {
  Memory memory;
  for (const Tensor& tensor : tensors) {
    check_floating(op, tensor, name);
    check_same_device(op, tensors[0], tensor);
    check_contiguous(op, {name, tensor});
    memory.writes({name, tensor});
  }
  memory.check_apart(op);
}

void scale_checked(const char* op, const std::vector<Tensor>& tensors, double factor) {
  if (tensors.empty()) return;
  for (const Tensor& tensor : tensors) begin_in_place(op, tensor);
  const std::vector<TensorRef> refs = refs_of(tensors);
  Workspace workspace(tensors[0].device());
  kernel_of(op, tensors[0].device(), &OptimStepKernels::scale)(workspace, refs.data(),
                                                               static_cast<std::int64_t>(refs.size()), factor);
}

}  // namespace

void adamw_step(Tensor param, const Tensor& grad, Tensor exp_avg, Tensor exp_avg_sq, const AdamWStep& options) {
  const AdamWTensors tensors{std::move(param), grad, std::move(exp_avg), std::move(exp_avg_sq)};
  adamw_step(std::span(&tensors, 1), options);
}

void adamw_step(std::span<const AdamWTensors> tensors, const AdamWStep& options) {
  const char* op = "adamw_step";
  check_number(op, "step", options.step, options.step >= 1, "1 for the first update");
  check_number(op, "lr", options.lr, at_least_zero(options.lr), "a number >= 0");
  check_number(op, "beta1", options.beta1, options.beta1 >= 0 && options.beta1 < 1, "0 <= beta1 < 1");
  check_number(op, "beta2", options.beta2, options.beta2 >= 0 && options.beta2 < 1, "0 <= beta2 < 1");
  check_number(op, "eps", options.eps, at_least_zero(options.eps), "a number >= 0");
  check_number(op, "weight_decay", options.weight_decay, at_least_zero(options.weight_decay), "a number >= 0");
  check_number(op, "grad_scale", options.grad_scale, at_least_zero(options.grad_scale), "a number >= 0");
  if (tensors.empty()) return;
  std::vector<Tensor> gradients;  // keeps contiguous copies alive
  Memory memory;
  for (const AdamWTensors& t : tensors) {
    const Named param{"param", t.param}, grad{"grad", t.grad};
    const Named mean{"exp_avg", t.exp_avg}, square{"exp_avg_sq", t.exp_avg_sq};
    check_floating(op, t.param, "param");
    for (const Named& other : {grad, mean, square}) check_alike(op, param, other);
    for (const Named& written : {param, mean, square}) {
      check_contiguous(op, written);
      memory.writes(written);
    }
    check_same_device(op, tensors[0].param, t.param);
    gradients.push_back(kernel_input(t.grad));
    memory.reads({"grad", gradients.back()});
  }
  memory.check_apart(op);
  std::vector<AdamWRefs> refs;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const AdamWTensors& t = tensors[i];
    for (const Tensor& written : {t.param, t.exp_avg, t.exp_avg_sq}) begin_in_place(op, written);
    refs.push_back({t.param.ref(), gradients[i].ref(), t.exp_avg.ref(), t.exp_avg_sq.ref()});
  }
  const double step = static_cast<double>(options.step);
  const AdamWFactors factors{.keep = 1 - options.lr * options.weight_decay,
                             .beta1 = options.beta1,
                             .beta2 = options.beta2,
                             .step_size = options.lr / (1 - std::pow(options.beta1, step)),
                             .root_factor = 1 / std::sqrt(1 - std::pow(options.beta2, step)),
                             .eps = options.eps,
                             .grad_scale = options.grad_scale};
  const Device device = tensors[0].param.device();
  Workspace workspace(device);
  kernel_of(op, device, &OptimStepKernels::adamw)(workspace, refs.data(), static_cast<std::int64_t>(refs.size()),
                                                  factors);
}

void sgd_step(Tensor param, const Tensor& grad, Tensor momentum_buffer, const SgdStep& options) {
  const SgdTensors tensors{std::move(param), grad, std::move(momentum_buffer)};
  sgd_step(std::span(&tensors, 1), options);
}

void sgd_step(std::span<const SgdTensors> tensors, const SgdStep& options) {
  const char* op = "sgd_step";
  check_number(op, "lr", options.lr, at_least_zero(options.lr), "a number >= 0");
  check_number(op, "momentum", options.momentum, at_least_zero(options.momentum), "a number >= 0");
  check_number(op, "dampening", options.dampening, std::isfinite(options.dampening), "a number");
  check_number(op, "weight_decay", options.weight_decay, at_least_zero(options.weight_decay), "a number >= 0");
  check_number(op, "grad_scale", options.grad_scale, at_least_zero(options.grad_scale), "a number >= 0");
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0)) {
    throw ValueError(format("[sgd_step] nesterov with momentum {} and dampening {}; expected momentum and no dampening",
                            options.momentum, options.dampening));
  }
  if (tensors.empty()) return;
  const bool moves = options.momentum != 0;
  std::vector<Tensor> gradients;
  Memory memory;
  for (const SgdTensors& t : tensors) {
    const Named param{"param", t.param}, grad{"grad", t.grad}, buffer{"momentum_buffer", t.momentum_buffer};
    check_floating(op, t.param, "param");
    check_alike(op, param, grad);
    check_contiguous(op, param);
    check_same_device(op, tensors[0].param, t.param);
    memory.writes(param);
    if (moves) {
      if (!t.momentum_buffer.defined()) {
        throw ValueError(format("[sgd_step] momentum {} without a buffer; expected one of the parameter's shape {}",
                                options.momentum, to_string(t.param.shape())));
      }
      check_alike(op, param, buffer);
      check_contiguous(op, buffer);
      memory.writes(buffer);
    }
    gradients.push_back(kernel_input(t.grad));
    memory.reads({"grad", gradients.back()});
  }
  memory.check_apart(op);
  std::vector<SgdRefs> refs;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const SgdTensors& t = tensors[i];
    begin_in_place(op, t.param);
    if (moves) begin_in_place(op, t.momentum_buffer);
    refs.push_back({t.param.ref(), gradients[i].ref(), moves ? t.momentum_buffer.ref() : TensorRef{}});
  }
  const SgdFactors factors{.lr = options.lr,
                           .momentum = options.momentum,
                           .dampening = options.dampening,
                           .weight_decay = options.weight_decay,
                           .nesterov = options.nesterov,
                           .first = options.first,
                           .grad_scale = options.grad_scale};
  const Device device = tensors[0].param.device();
  Workspace workspace(device);
  kernel_of(op, device, &OptimStepKernels::sgd)(workspace, refs.data(), static_cast<std::int64_t>(refs.size()),
                                                factors);
}

namespace {

// Of contiguous tensors, at least one, on their device.
Tensor scaled_squares(const char* op, const std::vector<Tensor>& tensors, double factor) {
  const std::vector<TensorRef> refs = refs_of(tensors);
  const Device device = tensors[0].device();
  Tensor sum = Tensor::empty({}, {.dtype = DType::f64, .device = device});
  Workspace workspace(device);
  kernel_of(op, device, &OptimStepKernels::sum_squares)(workspace, refs.data(), static_cast<std::int64_t>(refs.size()),
                                                        factor, sum.ref());
  return sum;
}

}  // namespace

Tensor sum_squares(const std::vector<Tensor>& tensors) {
  const std::vector<Tensor> found = present("sum_squares", tensors);
  if (found.empty()) throw ValueError("[sum_squares] no tensor is defined; expected at least one, for its device");
  return non_differentiable("sum_squares", scaled_squares("sum_squares", found, 1));
}

double global_norm(const std::vector<Tensor>& tensors) {
  const std::vector<Tensor> found = present("global_norm", tensors);
  if (found.empty()) return 0;
  const double sum = scaled_squares("global_norm", found, 1).item<double>();
  // Far from the ends of f64's range no square overflowed, and those that underflowed don't matter.
  if (std::isfinite(sum) && sum > 1e-280) return std::sqrt(sum);
  const Device device = found[0].device();
  const std::vector<TensorRef> refs = refs_of(found);
  Workspace workspace(device);
  const double largest = kernel_of("global_norm", device, &OptimStepKernels::max_abs)(
      workspace, refs.data(), static_cast<std::int64_t>(refs.size()));
  if (largest == 0 || !std::isfinite(largest)) return largest;
  const int exponent = std::clamp(-std::ilogb(largest), -1000, 1000);  // a power of two scales without rounding
  const double scaled = scaled_squares("global_norm", found, std::ldexp(1.0, exponent)).item<double>();
  return std::ldexp(std::sqrt(scaled), -exponent);
}

void scale_(Tensor x, double factor) {
  const std::vector<Tensor> tensors{std::move(x)};
  check_written("scale_", "x", tensors);
  scale_checked("scale_", tensors, factor);
}

double clip_factor(double norm, double max_norm) {
  check_number("clip_factor", "max_norm", max_norm, max_norm > 0, "a number > 0");
  return std::isfinite(norm) ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

double clip_grad_norm(const std::vector<Tensor>& grads, double max_norm) {
  check_number("clip_grad_norm", "max_norm", max_norm, max_norm > 0, "a number > 0");
  std::vector<Tensor> found;
  for (const Tensor& grad : grads) {
    if (grad.defined()) found.push_back(grad);
  }
  // Before the norm says whether they will be written: what is refused must not depend on the numbers.
  check_written("clip_grad_norm", "grads", found);
  const double norm = global_norm(found);
  const double factor = clip_factor(norm, max_norm);
  if (factor < 1) scale_checked("clip_grad_norm", found, factor);
  return norm;
}

void ema_update(Tensor ema, const Tensor& value, double decay) {
  ema_update(std::vector<Tensor>{std::move(ema)}, std::vector<Tensor>{value}, decay);
}

void ema_update(const std::vector<Tensor>& ema, const std::vector<Tensor>& values, double decay) {
  const char* op = "ema_update";
  check_number(op, "decay", decay, decay >= 0 && decay <= 1, "0 <= decay <= 1");
  if (ema.size() != values.size()) {
    throw ValueError(
        format("[ema_update] {} averages for {} values; expected one for each", ema.size(), values.size()));
  }
  std::vector<Tensor> averages, contiguous_values, copied, copied_values;
  Memory memory;
  for (std::size_t i = 0; i < ema.size(); ++i) {
    const Named average{"ema", ema[i]}, value{"value", values[i]};
    check_alike(op, average, value);
    if (ema[i].dtype() != DType::f32 && ema[i].dtype() != DType::f64) {
      copied.push_back(ema[i]);
      copied_values.push_back(values[i]);
      continue;
    }
    check_contiguous(op, average);
    memory.writes(average);
    averages.push_back(ema[i]);
    contiguous_values.push_back(kernel_input(values[i]));
    memory.reads({"value", contiguous_values.back()});
    check_same_device(op, averages[0], ema[i]);
  }
  memory.check_apart(op);
  std::vector<EmaRefs> refs;
  for (std::size_t i = 0; i < averages.size(); ++i) {
    begin_in_place(op, averages[i]);
    refs.push_back({averages[i].ref(), contiguous_values[i].ref()});
  }
  for (std::size_t i = 0; i < copied.size(); ++i) copied[i].copy_(copied_values[i]);
  if (averages.empty()) return;
  const Device device = averages[0].device();
  Workspace workspace(device);
  kernel_of(op, device, &OptimStepKernels::ema)(workspace, refs.data(), static_cast<std::int64_t>(refs.size()),
                                                1 - decay);
}

}  // namespace polygrad

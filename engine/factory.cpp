#include "engine/factory.h"

#include <cmath>

#include "engine/backend/kernels.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/parallel.h"

namespace polygrad {

namespace {

Tensor filled(const Shape& shape, double value, TensorOptions options) {
  const bool requires_grad = options.requires_grad;
  options.requires_grad = false;
  Tensor result = Tensor::empty(shape, options);
  result.fill_(value);
  if (requires_grad) result.set_requires_grad(true);
  return result;
}

using RandomFill = void (*)(const TensorRef&, const RandomStream&);

Tensor drawn(const char* op, RandomFill EngineKernels::*fill, const Shape& shape, const TensorOptions& options) {
  if (options.dtype != DType::f32 && options.dtype != DType::f64) {
    throw DTypeError(format("[{}] dtype {}; expected f32 or f64", op, to_string(options.dtype)));
  }
  Tensor result = Tensor::empty(shape, {.dtype = options.dtype, .device = options.device});
  Generator& generator = options.generator ? *options.generator : default_generator();
  FloatingPointGuard floating_point;
  (engine_kernels(options.device).*fill)(result.ref(), generator.take());
  if (options.requires_grad) result.set_requires_grad(true);
  return result;
}

}  // namespace

Tensor empty(const Shape& shape, const TensorOptions& options) { return Tensor::empty(shape, options); }
Tensor zeros(const Shape& shape, const TensorOptions& options) { return filled(shape, 0, options); }
Tensor ones(const Shape& shape, const TensorOptions& options) { return filled(shape, 1, options); }
Tensor full(const Shape& shape, double value, const TensorOptions& options) { return filled(shape, value, options); }
Tensor empty_like(const Tensor& like) { return Tensor::empty(like.shape(), like.options()); }
Tensor zeros_like(const Tensor& like) { return filled(like.shape(), 0, like.options()); }
Tensor ones_like(const Tensor& like) { return filled(like.shape(), 1, like.options()); }

Tensor arange(double start, double end, double step, const TensorOptions& options) {
  if (step == 0 || !std::isfinite(start) || !std::isfinite(end) || !std::isfinite(step)) {
    throw ValueError(format("[arange] start {}, end {}, step {}; expected finite numbers and a step other than 0",
                            start, end, step));
  }
  if ((end - start) / step < 0) {
    throw ValueError(format("[arange] step {} leads away from {} to {}", step, start, end));
  }
  const std::int64_t count = static_cast<std::int64_t>(std::ceil((end - start) / step));
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = start + static_cast<double>(i) * step;
  Tensor result = Tensor::from_vector(values, {count}).to(options.dtype).to(options.device);
  if (options.requires_grad) result.set_requires_grad(true);
  return result;
}

Tensor arange(std::int64_t end, const TensorOptions& options) {
  return arange(0, static_cast<double>(end), 1, options);
}

Tensor randn(const Shape& shape, const TensorOptions& options) {
  return drawn("randn", &EngineKernels::random_normal, shape, options);
}

Tensor rand(const Shape& shape, const TensorOptions& options) {
  return drawn("rand", &EngineKernels::random_uniform, shape, options);
}

}  // namespace polygrad

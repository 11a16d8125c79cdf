// Functions that make tensors. Names and meanings are torch's.
//
// Where this stands: beside tensor.h. Random factories draw from Philox (generator.h), so their values depend on the
// generator alone: not on the number of threads, the device or the machine.
#pragma once

#include "engine/generator.h"
#include "engine/tensor.h"

namespace polygrad {

Tensor empty(const Shape& shape, const TensorOptions& options = {});
Tensor zeros(const Shape& shape, const TensorOptions& options = {});
Tensor ones(const Shape& shape, const TensorOptions& options = {});
Tensor full(const Shape& shape, double value, const TensorOptions& options = {});
Tensor empty_like(const Tensor& like);  // contiguous, same shape, dtype and device, no gradient
Tensor zeros_like(const Tensor& like);
Tensor ones_like(const Tensor& like);
// start, start + step, ... while < end (> end for a negative step). Throws ValueError for step 0 or a wrong direction.
Tensor arange(double start, double end, double step = 1, const TensorOptions& options = {});
Tensor arange(std::int64_t end, const TensorOptions& options = {});
// Standard normal numbers (f32 or f64; f64 holds the f32 draw).
Tensor randn(const Shape& shape, const TensorOptions& options = {});
// Uniform in [0, 1): multiples of 2^-24 (f32 or f64).
Tensor rand(const Shape& shape, const TensorOptions& options = {});

}  // namespace polygrad

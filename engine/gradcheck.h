// gradcheck: compares an op's gradient with central differences in f64.
//
// Where this stands: public; the library's own tests use it, and so can you for a CustomFunction.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/tensor.h"

namespace polygrad {

struct GradcheckOptions {
  double step = 1e-6;           // of the central difference, times max(1, |x|)
  double tolerance = 1e-6;      // |analytic - numeric| <= tolerance * max(1, largest |numeric| of that input)
  bool require_nonzero = true;  // a gradient that is zero everywhere proves nothing: fail
  std::uint64_t seed = 0;       // of the random weights that turn the output into a number
};

struct GradcheckResult {
  bool ok = true;
  double max_error = 0;  // normalised as in the tolerance
  std::string message;   // which input, which element, both values; "" where ok
  explicit operator bool() const { return ok; }
};

// f maps the inputs to one tensor. Every input that requires a gradient must be f64 (DTypeError); f must be
// deterministic. The output is reduced to a number by fixed random weights, so each element of the gradient is checked.
GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& f, std::vector<Tensor> inputs,
                          const GradcheckOptions& options = {});

}  // namespace polygrad

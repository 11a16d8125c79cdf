// CustomFunction: an operation of your own with its own backward, in a few lines.
//
//     Tensor square(const Tensor& x) {
//       return CustomFunction("square", {x})
//           .save("x", x)
//           .backward([](const SavedTensors& saved, const Tensor& g, NeededMask) { return Gradients{mul(g,
//           mul(saved["x"], 2.0))}; }) .output(/* computed under NoGradGuard */ ...);
//     }
//
// Where this stands: a thin front on record() (autograd.h). Check yours with gradcheck (gradcheck.h).
#pragma once

#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/autograd.h"

namespace polygrad {

class SavedTensors {
 public:
  // The tensor saved under `name`. Throws GradError where it was written in place since, InternalError for a wrong
  // name.
  Tensor operator[](std::string_view name) const;

 private:
  friend class CustomFunction;
  std::vector<std::pair<const char*, SavedTensor>> entries_;
};

class CustomFunction {
 public:
  using Forward = std::function<Tensor()>;
  using Backward = std::function<Gradients(const SavedTensors& saved, const Tensor& grad_output, NeededMask needed)>;

  // `op` must be a string literal.
  CustomFunction(const char* op, std::vector<Tensor> inputs) : op_(op), inputs_(std::move(inputs)) {}
  CustomFunction& save(const char* name, const Tensor& tensor);
  CustomFunction& backward(Backward rule);
  // Runs `compute` without recording and attaches the rule to its result. The result may be saved too:
  // name it in `save_output_as`.
  Tensor output(const Forward& compute, const char* save_output_as = nullptr);

 private:
  const char* op_;
  std::vector<Tensor> inputs_;
  SavedTensors saved_;
  Backward rule_;
};

}  // namespace polygrad

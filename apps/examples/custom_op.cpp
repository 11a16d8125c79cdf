// An operation of the application's own, with its own gradient, and the proof that the gradient is right.
//
//     softsign(x) = x / (1 + |x|)          its derivative is 1 / (1 + |x|)²
#include <polygrad/polygrad.h>

#include <cstdio>
#include <vector>

using namespace polygrad;

// g·factor / (1 + |x|)²; a factor other than 1 is a mistake, made on purpose below.
Tensor softsign(const Tensor& x, double factor = 1) {
  return CustomFunction("softsign", {x})
      .save("x", x)
      .backward([factor](const SavedTensors& saved, const Tensor& g, NeededMask) {
        return Gradients{factor * g / square(1.0 + abs(saved["x"]))};
      })
      .output([&] { return x / (1.0 + abs(x)); });
}

int main() {
  Generator generator(7);
  const Tensor x = randn({3, 4}, {.dtype = DType::f64, .requires_grad = true, .generator = &generator});

  // Central differences in f64 against the rule, element by element.
  const GradcheckResult right = gradcheck([](const std::vector<Tensor>& in) { return softsign(in[0]); }, {x});
  std::printf("the rule:                      %s, error %.1e\n", right ? "right" : right.message.c_str(),
              right.max_error);

  // The check is worth something only if it finds a small mistake.
  const GradcheckResult wrong = gradcheck([](const std::vector<Tensor>& in) { return softsign(in[0], 1.001); }, {x});
  std::printf("wrong by a tenth of a percent: %s\n", wrong ? "not noticed" : wrong.message.c_str());

  // It takes part in a graph like any other operation.
  sum(square(softsign(x))).backward();
  std::printf("dL/dx[0, 0]:                   %.6f\n", x.grad().to_vector<double>()[0]);
  return right && !wrong ? 0 : 1;
}

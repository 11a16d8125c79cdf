// Backpropagation by hand, beside the engine's. All of it is the chain rule, applied from the last line to the first.
//
//     a = x·x          x = 0.8
//     b = tanh(a)
//     c = b·x          x is used a second time
//     L = exp(c)
//
// Each step knows only its own derivative. Going backwards, the gradient of a value is the gradient of what was
// computed from it, times the derivative of that step; where a value was used twice, the two are added.
#include <polygrad/polygrad.h>

#include <cmath>
#include <cstdio>
#include <vector>

using namespace polygrad;

int main() {
  // By hand, forwards: every value is kept, for the derivatives need them.
  const double x = 0.8;
  const double a = x * x;
  const double b = std::tanh(a);
  const double c = b * x;
  const double L = std::exp(c);

  // By hand, backwards. d_v means dL/dv.
  const double d_L = 1;
  const double d_c = d_L * L;            // d exp(c)/dc  = exp(c), which is L itself
  const double d_b = d_c * x;            // d (b·x)/db   = x
  double d_x = d_c * b;                  // d (b·x)/dx   = b: the first of x's two gradients
  const double d_a = d_b * (1 - b * b);  // d tanh(a)/da = 1 - tanh(a)²
  d_x += d_a * 2 * x;                    // d (x·x)/dx   = 2x: the second is added

  // The same four lines for the engine, which records each operation with the rule for its gradient.
  const Tensor tx = full({}, x, {.dtype = DType::f64, .requires_grad = true});
  const Tensor ta = square(tx);
  const Tensor tb = tanh(ta);
  const Tensor tc = tb * tx;
  const Tensor tL = exp(tc);
  // backward() would leave dL/dx in tx.grad(); grad() also tells those of the values in between.
  const std::vector<Tensor> gradients = grad(tL, {tx, ta, tb, tc, tL});

  const char* const names[] = {"x", "a", "b", "c", "L"};
  const double values[] = {x, a, b, c, L};
  const double by_hand[] = {d_x, d_a, d_b, d_c, d_L};
  std::printf("        value      dL/dv by hand      by the engine\n");
  bool equal = true;
  for (std::size_t i = 0; i < 5; ++i) {
    const double by_engine = gradients[i].item<double>();
    std::printf("%s %12.8f   %16.12f   %16.12f\n", names[i], values[i], by_hand[i], by_engine);
    equal = equal && std::abs(by_engine - by_hand[i]) < 1e-12;
  }
  std::printf(equal ? "they agree\n" : "they differ\n");
  return equal ? 0 : 1;
}

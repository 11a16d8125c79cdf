// The ten lines that say what polygrad is: two tensors, a number computed from them, and its gradient.
#include <polygrad/polygrad.h>

#include <cstdio>

using namespace polygrad;

int main() {
  Tensor x = randn({8, 16}), w = randn({16, 4}, {.requires_grad = true});
  Tensor loss = sum(tanh(matmul(x, w)));
  loss.backward();

  std::printf("loss            %.6f\n", static_cast<double>(loss.item<float>()));
  std::printf("dloss/dw[0, 0]  %.6f\n", static_cast<double>(w.grad().to_vector<float>()[0]));
  return w.grad().shape() == Shape{16, 4} ? 0 : 1;
}

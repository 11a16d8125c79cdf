// The CPU's attention table. Read next: attention_tiled.cpp, attention_linear.cpp, attention_materialised.cpp.
#include "ops/kernels/attention.h"

#include "ops/cpu/attention_paths.h"
#include "ops/cpu/floating.h"

namespace polygrad {
namespace cpu::attention {
namespace {

using Forward = void (*)(Workspace&, const AttentionProblem&, const TensorRef&, const TensorRef&);
using Backward = void (*)(Workspace&, const AttentionProblem&, const TensorRef&, const TensorRef&, const TensorRef&,
                          const AttentionGradients&);

template <Forward f32, Forward f64>
void forward(Workspace& workspace, const AttentionProblem& problem, const TensorRef& out, const TensorRef& state) {
  dispatch_floating(problem.q.dtype,
                    [&](auto zero) { (sizeof(zero) == 4 ? f32 : f64)(workspace, problem, out, state); });
}

template <Backward f32, Backward f64>
void backward(Workspace& workspace, const AttentionProblem& problem, const TensorRef& out, const TensorRef& state,
              const TensorRef& grad, const AttentionGradients& gradients) {
  dispatch_floating(problem.q.dtype, [&](auto zero) {
    (sizeof(zero) == 4 ? f32 : f64)(workspace, problem, out, state, grad, gradients);
  });
}

void map(Workspace& workspace, const AttentionProblem& problem, const TensorRef& map) {
  dispatch_floating(problem.q.dtype, [&](auto zero) { materialised_map<decltype(zero)>(workspace, problem, map); });
}

void norms(Workspace& workspace, const AttentionProblem& problem, const TensorRef& x, const TensorRef& norms) {
  dispatch_floating(problem.q.dtype, [&](auto zero) { frobenius_norms<decltype(zero)>(workspace, problem, x, norms); });
}

}  // namespace
}  // namespace cpu::attention

namespace attention_cpu = cpu::attention;

constinit const AttentionKernels cpu_attention_kernels = {
    .tiled = {attention_cpu::forward<attention_cpu::tiled_forward<float>, attention_cpu::tiled_forward<double>>,
              attention_cpu::backward<attention_cpu::tiled_backward<float>, attention_cpu::tiled_backward<double>>},
    .linear = {attention_cpu::forward<attention_cpu::linear_forward<float>, attention_cpu::linear_forward<double>>,
               attention_cpu::backward<attention_cpu::linear_backward<float>, attention_cpu::linear_backward<double>>},
    .materialised = {attention_cpu::forward<attention_cpu::materialised_forward<float>,
                                            attention_cpu::materialised_forward<double>>,
                     attention_cpu::backward<attention_cpu::materialised_backward<float>,
                                             attention_cpu::materialised_backward<double>>},
    .map = attention_cpu::map,
    .norms = attention_cpu::norms,
};

}  // namespace polygrad

// The entries of the CPU's attention table, each in the file of its name, for T = float and double.
//
// Where this stands: between attention.cpp (the table, dispatch on the dtype) and the paths. Signatures: see
// ops/kernels/attention.h.
#pragma once

#include "ops/kernels/attention.h"

namespace polygrad::cpu::attention {

// attention_tiled.cpp
template <class T>
void tiled_forward(Workspace&, const AttentionProblem&, const TensorRef& out, const TensorRef& state);
template <class T>
void tiled_backward(Workspace&, const AttentionProblem&, const TensorRef& out, const TensorRef& state,
                    const TensorRef& grad, const AttentionGradients&);

// attention_linear.cpp
template <class T>
void linear_forward(Workspace&, const AttentionProblem&, const TensorRef& out, const TensorRef& state);
template <class T>
void linear_backward(Workspace&, const AttentionProblem&, const TensorRef& out, const TensorRef& state,
                     const TensorRef& grad, const AttentionGradients&);

// attention_materialised.cpp
template <class T>
void materialised_forward(Workspace&, const AttentionProblem&, const TensorRef& out, const TensorRef& state);
template <class T>
void materialised_backward(Workspace&, const AttentionProblem&, const TensorRef& out, const TensorRef& state,
                           const TensorRef& grad, const AttentionGradients&);
template <class T>
void materialised_map(Workspace&, const AttentionProblem&, const TensorRef& map);

// attention_norms.cpp
template <class T>
void frobenius_norms(Workspace&, const AttentionProblem&, const TensorRef& x, const TensorRef& norms);

}  // namespace polygrad::cpu::attention

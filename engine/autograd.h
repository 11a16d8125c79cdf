// Reverse-mode automatic differentiation, first order: how an operation records its gradient, and how the graph is
// walked.
//
// Where this stands: beside tensor.h; every op's front ends in record().
// How it works: a tensor computed from one that requires a gradient holds a Node: the op's name, its rule, and edges to
// the nodes of its inputs. Tensor::backward counts each node's consumers, then runs rules in order, newest first, each
// when all gradients of its output have been added up. Rules run without recording and never add up: the engine does.
// Read next: autograd.cpp (the walk), custom_function.h (an op of your own), gradcheck.h (is its gradient right?).
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "engine/tensor.h"

namespace polygrad {

// --- guards (thread-local, RAII) ------------------------------------------------------------------------------------

// While one is alive, this thread records nothing: results do not require gradients.
class NoGradGuard {
 public:
  NoGradGuard();
  ~NoGradGuard();
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;

 private:
  bool previous_;
};
bool grad_enabled();

// While one is alive, every op's result and every gradient is checked; the first NaN or infinity throws NumericError
// with the op's name and the path of the module it ran in (engine/scope.h). Slow; for finding the cause of a
// divergence.
class AnomalyGuard {
 public:
  AnomalyGuard();
  ~AnomalyGuard();
  AnomalyGuard(const AnomalyGuard&) = delete;
  AnomalyGuard& operator=(const AnomalyGuard&) = delete;

 private:
  bool previous_;
};
bool anomaly_enabled();

// --- recording an operation -----------------------------------------------------------------------------------------

// What a rule may keep: the elements' storage, layout and version, never a graph edge (so an op may save its own
// output). get() throws GradError, naming op and argument, where the tensor was written in place after it was saved.
class SavedTensor {
 public:
  SavedTensor() = default;
  SavedTensor(const Tensor& tensor, const char* argument);
  bool defined() const { return tensor_.defined(); }
  Tensor get() const;  // undefined where an undefined tensor was saved

 private:
  Tensor tensor_;
  std::uint64_t version_ = 0;
  const char* argument_ = "";
};

// Which inputs' gradients the walk will use; a rule computes only these.
class NeededMask {
 public:
  explicit NeededMask(std::uint64_t bits) : bits_(bits) {}
  bool operator[](std::size_t input) const { return (bits_ >> input) & 1; }

 private:
  std::uint64_t bits_;
};

// One entry per input, in order. An undefined entry means zero, or not needed.
using Gradients = std::vector<Tensor>;
// dL/d(output) -> dL/d(inputs). The gradient given is defined, of the output's shape and dtype, of any strides; it may
// be shared, so a rule must not write it. Rules run under NoGradGuard.
using BackwardRule = std::function<Gradients(const Tensor& grad_output, NeededMask needed)>;

// Whether an op on these inputs will be recorded (recording is on and one of them requires a gradient). Undefined
// inputs are allowed everywhere: absent optional arguments.
bool needs_grad(std::initializer_list<Tensor> inputs);
bool needs_grad(std::span<const Tensor> inputs);

// The end of every differentiable op's front: attaches the rule to `output` where needs_grad(inputs), and returns it.
// `op` must be a string literal. At most 64 inputs.
Tensor record(const char* op, Tensor output, std::initializer_list<Tensor> inputs, BackwardRule rule);
Tensor record(const char* op, Tensor output, std::vector<Tensor> inputs, BackwardRule rule);
// The end of an op that has no gradient by its nature (integer results, comparisons, maps for looking at): the result
// is marked as not differentiable, which is a statement, not an omission.
Tensor non_differentiable(const char* op, Tensor output);
// The start of an op that could have a gradient but has none here: throws GradError where one would be cut silently.
void no_backward(const char* op, std::initializer_list<Tensor> inputs);

// The start of every in-place op: enforces the rule in tensor.h and advances the version of the family of views.
void begin_in_place(const char* op, const Tensor& tensor);

// Makes a tensor on the same storage: the base of every view op (no gradient by itself; the caller records it).
// `offset` is relative to the tensor's first element. The view joins the tensor's family. Throws IndexError where it
// would leave the storage.
Tensor make_view(const Tensor& tensor, const Shape& shape, const Shape& strides, std::int64_t offset);

// Gradients for several leaves at once, without touching their .grad: d(output)/d(inputs), each defined (zeros where
// the output does not depend on it). Hooks do not run.
std::vector<Tensor> grad(const Tensor& output, const std::vector<Tensor>& inputs, const Tensor& gradient = {},
                         bool retain_graph = false);

}  // namespace polygrad

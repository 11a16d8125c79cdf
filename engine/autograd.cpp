// The graph: recording, the in-place rule, and the walk.
//
// Reading order: record() builds nodes; Walk runs their rules; accumulate_into() is the one place where gradients add
// up.
#include "engine/autograd.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <unordered_map>

#include "engine/backend/kernels.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/format.h"
#include "engine/parallel.h"
#include "engine/profile.h"
#include "engine/profile_hooks.h"
#include "engine/scope.h"
#include "engine/tensor_impl.h"
#include "engine/testing_access.h"

namespace polygrad {

using detail::AutogradData;
using detail::Edge;
using detail::Node;
using detail::TensorImpl;
using testing::MutationGuard;
using testing::MutationTarget;

namespace {

thread_local bool recording = true;
thread_local bool anomaly = false;
thread_local const char* walking_op = nullptr;  // whose rule runs, for SavedTensor's message
std::atomic<std::uint64_t> next_sequence{1};

const EngineKernels& kernels_of(const Tensor& tensor) { return engine_kernels(tensor.device()); }

// A copy times `factor`: only for deliberate faults, so its speed does not matter.
Tensor scaled_copy(const Tensor& tensor, double factor) {
  Tensor result = tensor.detach().to(DType::f64).clone();
  double* data = result.data<double>();
  for (std::int64_t i = 0; i < result.numel(); ++i) data[i] *= factor;
  return result.to(tensor.dtype());
}

std::string place(const std::string& path) { return path.empty() ? std::string() : format(" in module {}", path); }

bool has_overlap(const Tensor& tensor) {
  // Sorted by stride, each dimension must step over all that the smaller ones span.
  const Shape& shape = tensor.shape();
  const Shape& strides = tensor.strides();
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, size
  for (int i = 0; i < shape.dim(); ++i) {
    if (shape[i] == 0) return false;
    if (shape[i] > 1) dims.emplace_back(std::abs(strides[i]), shape[i]);
  }
  std::sort(dims.begin(), dims.end());
  std::int64_t span = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < span) return true;
    span += stride * (size - 1);
  }
  return false;
}

}  // namespace

// --- guards --------------------------------------------------------------------------------------------------------

NoGradGuard::NoGradGuard() : previous_(recording) { recording = false; }
NoGradGuard::~NoGradGuard() { recording = previous_; }
bool grad_enabled() { return recording; }

AnomalyGuard::AnomalyGuard() : previous_(anomaly) { anomaly = true; }
AnomalyGuard::~AnomalyGuard() { anomaly = previous_; }
bool anomaly_enabled() { return anomaly; }

// --- saved tensors -------------------------------------------------------------------------------------------------

SavedTensor::SavedTensor(const Tensor& tensor, const char* argument) : argument_(argument) {
  if (!tensor.defined()) return;
  tensor_ = tensor.detach();
  version_ = tensor_.version();
}

Tensor SavedTensor::get() const {
  if (tensor_.defined() && tensor_.version() != version_) {
    throw GradError(
        format("[{}] the saved argument '{}', {}, was changed in place after the forward (version {}, expected {}); "
               "clone() it before the change, or change it after the backward",
               walking_op ? walking_op : "saved tensor", argument_, describe(tensor_), tensor_.version(), version_));
  }
  return tensor_;
}

// --- recording -----------------------------------------------------------------------------------------------------

bool needs_grad(std::span<const Tensor> inputs) {
  if (!recording) return false;
  return std::any_of(inputs.begin(), inputs.end(), [](const Tensor& t) { return t.defined() && t.requires_grad(); });
}

bool needs_grad(std::initializer_list<Tensor> inputs) { return needs_grad(std::span(inputs.begin(), inputs.size())); }

namespace {

// A view computes nothing; and its input may be a buffer that is only now being filled.
bool is_view_of(const Tensor& output, const std::vector<Tensor>& inputs) {
  return !inputs.empty() && inputs[0].defined() && inputs[0].impl()->storage == output.impl()->storage;
}

}  // namespace

Tensor record(const char* op, Tensor output, std::vector<Tensor> inputs, BackwardRule rule) {
  if (!walking_op) detail::profile_op(op, output, inputs.data(), inputs.size());
  if (const auto factor = MutationGuard::Access::factor(op, MutationTarget::value)) {
    output = is_floating(output.dtype()) ? scaled_copy(output, *factor) : output;
  }
  if (anomaly && !is_view_of(output, inputs) && !all_finite(output)) {
    throw NumericError(
        format("[{}] the result has a NaN or infinity{}: {}", op, place(Scope::path()), describe(output)));
  }
  if (!needs_grad(inputs)) return output;
  if (!is_floating(output.dtype()))
    throw InternalError(format("[{}] a {} result can't have a gradient", op, to_string(output.dtype())));
  if (inputs.size() > 64) throw InternalError(format("[{}] {} inputs; at most 64 can be recorded", op, inputs.size()));
  // An op that returns its input as it is, or a tensor of another graph, gets a handle of its own.
  if (output.impl()->autograd ||
      std::any_of(inputs.begin(), inputs.end(), [&](const Tensor& t) { return t.is_same(output); })) {
    output = detail::alias(output);
  }
  auto node = std::make_shared<Node>();
  node->op = op;
  node->rule = std::move(rule);
  node->shape = output.shape();
  node->dtype = output.dtype();
  node->device = output.device();
  node->sequence = next_sequence.fetch_add(1, std::memory_order_relaxed);
  if (anomaly || detail::profiling()) node->path = Scope::path();
  node->edges.reserve(inputs.size());
  for (const Tensor& input : inputs) {
    Edge edge;
    if (input.defined() && input.impl()->autograd) {
      const AutogradData& data = *input.impl()->autograd;
      if (data.node) {
        edge.node = data.node;
      } else if (data.requires_grad) {
        edge.leaf = input.impl();
      }
    }
    node->edges.push_back(std::move(edge));
  }
  output.impl()->autograd_data().node = std::move(node);
  return output;
}

Tensor record(const char* op, Tensor output, std::initializer_list<Tensor> inputs, BackwardRule rule) {
  return record(op, std::move(output), std::vector<Tensor>(inputs), std::move(rule));
}

Tensor non_differentiable(const char* op, Tensor output) {
  if (!walking_op) detail::profile_op(op, output, nullptr, 0);
  if (const auto factor = MutationGuard::Access::factor(op, MutationTarget::value))
    output = scaled_copy(output, *factor);
  return output;
}

void no_backward(const char* op, std::initializer_list<Tensor> inputs) {
  if (needs_grad(inputs)) {
    throw GradError(
        format("[{}] has no backward, but an input needs a gradient; detach() it, or use a NoGradGuard", op));
  }
}

void begin_in_place(const char* op, const Tensor& tensor) {
  const AutogradData* data = tensor.impl() ? tensor.impl()->autograd.get() : nullptr;
  if (data && data->node) {
    throw GradError(
        format("[{}] in place on the result of {}, which is part of a recorded graph; use the op that returns a new "
               "tensor, or detach().clone()",
               op, data->node->op));
  }
  if (data && data->requires_grad && recording) {
    throw GradError(format("[{}] in place on a leaf that needs a gradient, while recording; use a NoGradGuard", op));
  }
  if (has_overlap(tensor)) {
    throw ValueError(
        format("[{}] in place on {} with strides {}: several elements share one place in memory; clone() it first", op,
               describe(tensor), to_string(tensor.strides())));
  }
  tensor.impl()->version->fetch_add(1, std::memory_order_relaxed);
}

Tensor make_view(const Tensor& tensor, const Shape& shape, const Shape& strides, std::int64_t offset) {
  if (shape.dim() != strides.dim()) {
    throw InternalError(format("[make_view] shape {} with strides {}", to_string(shape), to_string(strides)));
  }
  Tensor view = detail::alias(tensor);
  TensorImpl& impl = *view.impl();
  impl.shape = shape;
  impl.strides = strides;
  // Overflow counts as leaving: a wrapped sum could look like a place inside.
  bool inside = !__builtin_add_overflow(impl.offset, offset, &impl.offset);
  if (!inside || shape.numel() > 0) {
    std::int64_t lowest = impl.offset, highest = impl.offset;
    for (int i = 0; i < shape.dim(); ++i) {
      std::int64_t& bound = strides[i] < 0 ? lowest : highest;
      std::int64_t reach = 0;
      inside = inside && !__builtin_mul_overflow(strides[i], shape[i] - 1, &reach) &&
               !__builtin_add_overflow(bound, reach, &bound);
    }
    const std::int64_t available = static_cast<std::int64_t>(impl.storage->bytes / dtype_size(impl.dtype));
    if (!inside || lowest < 0 || highest >= available) {
      throw IndexError(format("[make_view] shape {} with strides {} at offset {} leaves the storage of {} elements",
                              to_string(shape), to_string(strides), impl.offset, available));
    }
  }
  return view;
}

// --- adding gradients up -------------------------------------------------------------------------------------------

namespace {

// Nobody else can see these elements, and they are just this tensor's. Memory that is not the allocator's may vanish
// with its owner.
bool sole_owner(const Tensor& tensor) {
  const std::shared_ptr<TensorImpl>& impl = tensor.impl();
  return impl.use_count() == 1 && impl->storage.use_count() == 1 && impl->storage->owned && tensor.is_contiguous() &&
         impl->storage->bytes == static_cast<std::size_t>(tensor.numel()) * dtype_size(impl->dtype);
}

void add(const Tensor& from, Tensor& into) {
  FloatingPointGuard floating_point;
  kernels_of(into).accumulate(from.ref(), into.ref());
  into.impl()->version->fetch_add(1, std::memory_order_relaxed);
}

// total += gradient. The first one is shared, not copied; adding to it makes a copy unless nobody else holds it.
void accumulate_shared(Tensor gradient, Tensor& total) {
  if (!total.defined()) {
    total = std::move(gradient);
    return;
  }
  if (!sole_owner(total)) total = total.clone();
  add(gradient, total);
}

// A leaf's gradient lives on after the walk, so it must own its buffer: adopted where we are the sole owner, else
// copied.
void accumulate_into_leaf(Tensor gradient, TensorImpl& leaf) {
  AutogradData& data = leaf.autograd_data();
  if (data.grad.defined()) {
    if (!data.pinned && !sole_owner(data.grad)) data.grad = data.grad.clone();
    add(gradient, data.grad);
  } else {
    data.grad = sole_owner(gradient) ? std::move(gradient) : gradient.clone();
  }
}

void check_gradient(const Node& node, std::size_t input, const Tensor& gradient, const Edge& edge) {
  const Shape& shape = edge.node ? edge.node->shape : edge.leaf->shape;
  const DType dtype = edge.node ? edge.node->dtype : edge.leaf->dtype;
  if (gradient.shape() != shape || gradient.dtype() != dtype) {
    throw GradError(format("[{}] the backward rule returned {} {} as gradient of input {}; expected {} {}", node.op,
                           to_string(gradient.dtype()), to_string(gradient.shape()), input, to_string(dtype),
                           to_string(shape)));
  }
  if (anomaly && !all_finite(gradient)) {
    throw NumericError(format("[{}] the gradient of input {} has a NaN or infinity{}: {}", node.op, input,
                              place(node.path), describe(gradient)));
  }
}

// --- the walk ------------------------------------------------------------------------------------------------------

// A copy runs: a hook may replace itself or another leaf's, also by none.
void call_hook(const TensorImpl& impl, Tensor leaf) {
  if (const std::function<void(Tensor&)> hook = impl.autograd->hook) hook(leaf);
}

class Walk {
 public:
  // Where `targets` is given, only these tensors' gradients are collected, and leaves stay untouched.
  Walk(const Tensor& root, bool retain_graph, const std::vector<Tensor>* targets)
      : root_(root.impl()->autograd->node), retain_graph_(retain_graph), targets_(targets) {
    discover();
  }

  void run(const Tensor& gradient) {
    const NoGradGuard no_grad;
    const ProfilePhase phase("backward");
    states_.at(root_.get()).gradient = gradient;
    if (states_.at(root_.get()).useful) ready_.push(root_.get());
    while (!ready_.empty()) {
      Node* node = ready_.top();
      ready_.pop();
      visit(*node);
    }
  }

  Tensor collected(const Tensor& target) const {
    const TensorImpl* impl = target.impl().get();
    const AutogradData* data = impl->autograd.get();
    const void* key = data && data->node ? static_cast<const void*>(data->node.get()) : impl;
    const auto found = collected_.find(key);
    return found == collected_.end() ? Tensor() : found->second;
  }

 private:
  struct State {
    int consumers = 0;   // visits that still may add to the gradient
    bool useful = true;  // leads to something that is collected
    Tensor gradient;
  };
  struct Older {
    bool operator()(const Node* a, const Node* b) const { return a->sequence < b->sequence; }
  };

  // Counts each node's consumers, depth first with a stack of our own, and refuses a released graph before anything
  // runs.
  void discover() {
    std::vector<Node*> stack{root_.get()}, order;
    states_[root_.get()];
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      order.push_back(node);
      if (node->released) {
        throw GradError(
            format("[{}] backward through a graph that an earlier backward has released; call backward(gradient, "
                   "/*retain_graph=*/true) the first time, or run the forward again",
                   node->op));
      }
      for (const Edge& edge : node->edges) {
        if (edge.leaf && !targets_ && edge.leaf->autograd->hook) ++hooks_due_[edge.leaf.get()];
        if (!edge.node) continue;
        const auto [state, fresh] = states_.try_emplace(edge.node.get());
        ++state->second.consumers;
        if (fresh) stack.push_back(edge.node.get());
      }
    }
    if (!targets_) return;
    for (const Tensor& target : *targets_) {
      const AutogradData* data = target.impl()->autograd.get();
      collected_[data && data->node ? static_cast<const void*>(data->node.get()) : target.impl().get()];
    }
    // Oldest first: what a node leads to is older than itself.
    std::sort(order.begin(), order.end(), Older());
    for (Node* node : order) {
      State& state = states_.at(node);
      state.useful = collected_.count(node) > 0;
      for (const Edge& edge : node->edges) {
        state.useful |= edge.leaf && collected_.count(edge.leaf.get()) > 0;
        state.useful |= edge.node && states_.at(edge.node.get()).useful;
      }
    }
  }

  bool wanted(const Edge& edge) const {
    if (edge.node) return states_.at(edge.node.get()).useful;
    return edge.leaf && (!targets_ || collected_.count(edge.leaf.get()) > 0);
  }

  void visit(Node& node) {
    State& state = states_.at(&node);
    Tensor gradient = std::move(state.gradient);
    if (const auto found = collected_.find(&node); found != collected_.end() && gradient.defined())
      found->second = gradient;
    std::uint64_t needed = 0;
    for (std::size_t i = 0; i < node.edges.size(); ++i) {
      if (wanted(node.edges[i])) needed |= std::uint64_t{1} << i;
    }
    Gradients gradients;
    if (gradient.defined() && needed) gradients = apply_rule(node, gradient, NeededMask(needed));
    gradients.resize(node.edges.size());
    detail::profile_rule(node.op, node.path.c_str(), gradient, gradients.data(), gradients.size());
    gradient = Tensor();
    std::vector<Edge> edges;
    if (retain_graph_) {
      edges = node.edges;
    } else {  // release what the rule saved before going on
      edges = std::move(node.edges);
      node.edges.clear();
      node.rule = nullptr;
      node.released = true;
      // What leads here stays alive until it has been visited: states_ holds plain pointers.
      for (const Edge& edge : edges) {
        if (edge.node) alive_.push_back(edge.node);
      }
    }
    for (std::size_t i = 0; i < edges.size(); ++i) {
      const Edge& edge = edges[i];
      Tensor& part = gradients[i];
      if (part.defined() && wanted(edge)) deliver(edge, std::move(part));
      part = Tensor();
      if (edge.leaf && !targets_) run_hook(edge.leaf);
      if (!edge.node) continue;
      State& producer = states_.at(edge.node.get());
      if (--producer.consumers == 0) ready_.push(edge.node.get());
    }
    profile_mark("accumulate");
  }

  Gradients apply_rule(const Node& node, const Tensor& gradient, NeededMask needed) {
    walking_op = node.op;
    Gradients gradients;
    try {
      gradients = node.rule(gradient, needed);
    } catch (...) {
      walking_op = nullptr;
      throw;
    }
    walking_op = nullptr;
    if (gradients.size() != node.edges.size()) {
      throw GradError(format("[{}] the backward rule returned {} gradients for {} inputs", node.op, gradients.size(),
                             node.edges.size()));
    }
    const auto factor = MutationGuard::Access::factor(node.op, MutationTarget::gradient);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined() || !wanted(node.edges[i])) continue;
      if (factor) gradients[i] = scaled_copy(gradients[i], *factor);
      check_gradient(node, i, gradients[i], node.edges[i]);
    }
    return gradients;
  }

  void deliver(const Edge& edge, Tensor gradient) {
    if (edge.node) {
      accumulate_shared(std::move(gradient), states_.at(edge.node.get()).gradient);
    } else if (targets_) {
      accumulate_shared(std::move(gradient), collected_.at(edge.leaf.get()));
    } else {
      accumulate_into_leaf(std::move(gradient), *edge.leaf);
    }
  }

  // A leaf's hook runs once a walk, when the last edge that leads to it has been visited and its gradient is whole.
  void run_hook(const std::shared_ptr<TensorImpl>& impl) {
    const auto due = hooks_due_.find(impl.get());
    if (due == hooks_due_.end() || --due->second > 0 || !impl->autograd->grad.defined()) return;
    call_hook(*impl, Tensor(impl));
  }

  std::shared_ptr<Node> root_;
  bool retain_graph_;
  const std::vector<Tensor>* targets_;
  std::unordered_map<const Node*, State> states_;
  std::unordered_map<const void*, Tensor> collected_;            // by node, or by leaf
  std::unordered_map<const TensorImpl*, int> hooks_due_;         // edges still to visit, of leaves with a hook
  std::priority_queue<Node*, std::vector<Node*>, Older> ready_;  // newest first: the order is the same on every run
  std::vector<std::shared_ptr<Node>> alive_;
};

Tensor start_gradient(const char* op, const Tensor& output, const Tensor& gradient) {
  if (!gradient.defined()) {
    if (output.numel() != 1) {
      throw GradError(
          format("[{}] the output has shape {}; without a gradient given, expected a single element (a loss)", op,
                 to_string(output.shape())));
    }
    return ones_like(output);
  }
  if (gradient.shape() != output.shape() || gradient.dtype() != output.dtype()) {
    throw ShapeError(format("[{}] gradient {} for output {}; expected the same shape and dtype", op, describe(gradient),
                            describe(output)));
  }
  return gradient.detach();
}

}  // namespace

std::vector<Tensor> grad(const Tensor& output, const std::vector<Tensor>& inputs, const Tensor& gradient,
                         bool retain_graph) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad())
      throw GradError(format("[grad] input {} does not require a gradient", i));
  }
  const Tensor start = start_gradient("grad", output, gradient);
  std::vector<Tensor> result;
  const AutogradData* data = output.impl()->autograd.get();
  if (data && data->node) {
    Walk walk(output, retain_graph, &inputs);
    walk.run(start);
    for (const Tensor& input : inputs) result.push_back(walk.collected(input));
  } else {
    for (const Tensor& input : inputs) result.push_back(input.is_same(output) ? start : Tensor());
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (!result[i].defined()) result[i] = zeros_like(inputs[i]);
  }
  return result;
}

// --- a tensor's autograd data --------------------------------------------------------------------------------------

void Tensor::backward(const Tensor& gradient, bool retain_graph) const {
  if (!requires_grad()) {
    throw GradError(
        "[backward] the output does not require a gradient: nothing it was computed from does, or it was computed "
        "under "
        "a NoGradGuard");
  }
  const Tensor start = start_gradient("backward", *this, gradient);
  if (!impl_->autograd->node) {  // a leaf: its own gradient
    accumulate_into_leaf(start.clone(), *impl_);
    call_hook(*impl_, *this);
    return;
  }
  Walk(*this, retain_graph, nullptr).run(start);
}

bool Tensor::requires_grad() const {
  checked();
  return impl_->autograd && (impl_->autograd->requires_grad || impl_->autograd->node);
}

Tensor& Tensor::set_requires_grad(bool value) {
  checked();
  if (!is_leaf()) throw GradError("[set_requires_grad] the tensor is the result of a recorded op; detach() it first");
  if (value && !is_floating(dtype())) {
    throw DTypeError(
        format("[set_requires_grad] {} can't have a gradient; expected a floating dtype", describe(*this)));
  }
  if (value || impl_->autograd) impl_->autograd_data().requires_grad = value;
  return *this;
}

bool Tensor::is_leaf() const {
  checked();
  return !impl_->autograd || !impl_->autograd->node;
}

Tensor Tensor::grad() const {
  checked();
  return impl_->autograd ? impl_->autograd->grad : Tensor();
}

void Tensor::zero_grad() {
  checked();
  if (!impl_->autograd || !impl_->autograd->grad.defined()) return;
  if (impl_->autograd->pinned) {
    impl_->autograd->grad.fill_(0);
  } else {
    impl_->autograd->grad = Tensor();
  }
}

void Tensor::set_grad(const Tensor& gradient) {
  checked();
  if (gradient.defined() &&
      (gradient.shape() != shape() || gradient.dtype() != dtype() || !(gradient.device() == device()))) {
    throw ShapeError(format("[set_grad] gradient {} for {}; expected the same shape, dtype and device",
                            describe(gradient), describe(*this)));
  }
  AutogradData& data = impl_->autograd_data();
  data.grad = gradient.defined() ? gradient.detach() : Tensor();
  data.pinned = false;
}

void Tensor::pin_grad(const Tensor& buffer) {
  if (buffer.defined() && !buffer.is_contiguous()) {
    throw ValueError(format("[pin_grad] strides {}; expected a contiguous buffer", to_string(buffer.strides())));
  }
  set_grad(buffer);
  impl_->autograd_data().pinned = buffer.defined();
}

void Tensor::set_post_accumulate_hook(std::function<void(Tensor&)> hook) {
  checked();
  if (!is_leaf()) throw GradError("[set_post_accumulate_hook] the tensor is not a leaf; only leaves collect gradients");
  impl_->autograd_data().hook = std::move(hook);
}

// --- destruction ---------------------------------------------------------------------------------------------------

namespace detail {

Node::~Node() {
  // A node whose last owner is an edge of ours is taken apart here, not by recursion through its destructor.
  std::vector<std::shared_ptr<Node>> pending;
  const auto collect = [&pending](std::vector<Edge>& from) {
    for (Edge& edge : from) {
      if (edge.node && edge.node.use_count() == 1) pending.push_back(std::move(edge.node));
    }
  };
  collect(edges);
  while (!pending.empty()) {
    const std::shared_ptr<Node> node = std::move(pending.back());
    pending.pop_back();
    collect(node->edges);
  }
}

}  // namespace detail

}  // namespace polygrad

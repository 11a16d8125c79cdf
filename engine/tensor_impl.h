// What a Tensor handle points to. Internal: not installed.
//
// Where this stands: between tensor.cpp (storage, views, copies) and autograd.cpp (nodes, gradients).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "engine/autograd.h"
#include "engine/tensor.h"

namespace polygrad::detail {

// A block of memory: the allocator's, or the caller's with its deleter (from_blob).
struct Storage {
  Storage(std::size_t byte_count, Device where);                                              // allocates
  Storage(void* pointer, std::size_t byte_count, std::function<void(void*)> on_destruction);  // wraps
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data;
  std::size_t bytes;
  Device device;
  bool owned;
  std::function<void(void*)> deleter;
};

// An edge of the graph: to the node that computed an input, or to a leaf that collects its gradient; neither for an
// input that needs no gradient.
struct Edge {
  std::shared_ptr<Node> node;
  std::shared_ptr<TensorImpl> leaf;
  bool needed() const { return node || leaf; }
};

// One recorded operation.
class Node {
 public:
  Node() = default;
  ~Node();  // iterative: a chain of any length is destroyed on a small stack
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const char* op = "";
  BackwardRule rule;
  std::vector<Edge> edges;  // one per input
  Shape shape;              // of the output, as are dtype and device
  DType dtype = DType::f32;
  Device device;
  std::uint64_t sequence = 0;  // creation order: consumers have larger numbers than what they consume
  bool released = false;       // a walk has consumed it
  std::string path;            // the module it ran in; filled in anomaly mode and under a Profiler only
};

struct AutogradData {
  bool requires_grad = false;  // of a leaf
  bool pinned = false;         // grad is the caller's buffer
  Tensor grad;
  std::function<void(Tensor&)> hook;
  std::shared_ptr<Node> node;  // of a computed tensor
};

struct TensorImpl {
  Shape shape;
  Shape strides;
  std::int64_t offset = 0;  // in elements
  DType dtype = DType::f32;
  std::shared_ptr<Storage> storage;
  std::shared_ptr<std::atomic<std::uint64_t>> version;  // shared by a family of views
  std::unique_ptr<AutogradData> autograd;

  char* data() const {
    return static_cast<char*>(storage->data) + offset * static_cast<std::int64_t>(dtype_size(dtype));
  }
  AutogradData& autograd_data() {
    if (!autograd) autograd = std::make_unique<AutogradData>();
    return *autograd;
  }
};

// A tensor on new memory, uninitialised.
std::shared_ptr<TensorImpl> make_impl(const Shape& shape, DType dtype, Device device);
// The same elements and family, without autograd data.
Tensor alias(const Tensor& tensor);

}  // namespace polygrad::detail

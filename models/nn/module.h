// Module: a part of a model that owns parameters and further modules, and knows its place in the tree.
//
// Where this stands: the bottom of models/. A module registers, names and creates a member in one call:
//
//   class Mlp : public Module {
//    public:
//     Mlp(std::int64_t dim, std::int64_t hidden)
//         : fc1_(child<Linear>("fc1", dim, hidden)), fc2_(child<Linear>("fc2", hidden, dim)) {}
//     Tensor forward(const Tensor& x, const ForwardContext& = {}) const {
//       const Scope scope(name());
//       return fc2_.forward(gelu(fc1_.forward(x)));
//     }
//
//    private:
//     Linear& fc1_;
//     Linear& fc2_;
//   };
//
// There is no training mode to forget: whether a forward trains is an argument of that forward. A forward in
// evaluation changes nothing, so several threads may run one model at once.
// Read next: init.h, linear.h, attention.h, then vision/vit.h.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/generator.h"
#include "engine/safetensors.h"
#include "engine/scope.h"
#include "engine/tensor.h"
#include "models/nn/init.h"

namespace polygrad {

// What a forward needs to know beside its input. The default is evaluation.
struct ForwardContext {
  bool training = false;
  std::uint64_t seed = 0;         // of all dropout masks of the run
  std::int64_t step = 0;          // the optimizer step
  std::int64_t first_sample = 0;  // index of row 0 within the optimizer step's batch
};

class Module {
 public:
  virtual ~Module() = default;
  Module(const Module&) = delete;  // neither copied nor moved: children know their parent's address
  Module& operator=(const Module&) = delete;

  const std::string& name() const { return name_; }  // within the parent; "" for a root
  std::string path() const;                          // "blocks.3.attn"; "" for a root
  const Module* parent() const { return parent_; }
  const std::vector<std::unique_ptr<Module>>& children() const { return children_; }

  // Path and tensor: a module's own first, then its children's, each in the order of registration (torch's order).
  NamedTensors named_parameters() const;
  // Parameters and buffers: everything that a file of weights holds.
  NamedTensors state() const;
  // The parameter or buffer of that path (undefined where there is none).
  Tensor find(const std::string& path) const;
  std::uint64_t parameter_count() const;
  // Of the first parameter or buffer; the CPU where there is none.
  Device device() const;

  // Every parameter and buffer from here on, in place. Call these before an optimizer or another handle holds the
  // parameters: they make new tensors.
  void to(Device device);
  void to(DType dtype);  // floating parameters and buffers only; f64 for sharp gradient checks
  void zero_grad();

 protected:
  Module() = default;

  // Creates, names and owns a module. Throws InternalError for a name taken in this module.
  template <class M, class... Args>
  M& child(std::string name, Args&&... args) {
    auto module = std::make_unique<M>(std::forward<Args>(args)...);
    M& reference = *module;
    adopt(std::move(name), std::move(module));
    return reference;
  }
  // Creates a leaf that wants a gradient. It holds NaN until initialize() or a file fills it, so that a forgotten one
  // shows. The reference stays valid (and follows to()) as long as the module.
  const Tensor& parameter(std::string name, const Shape& shape, const Init& init);
  // State without a gradient, such as running statistics: filled with `value` at once.
  const Tensor& buffer(std::string name, const Shape& shape, double value, DType dtype = DType::f32);

 private:
  friend void initialize(Module& root, std::uint64_t seed);

  struct Entry {
    std::string name;
    Tensor tensor;
    Init init;
    bool trained;
  };
  void adopt(std::string name, std::unique_ptr<Module> module);
  const Tensor& enter(std::string name, Tensor tensor, const Init& init, bool trained);
  // Calls visit(path, entry) for each entry of the subtree, in the order of named_parameters.
  template <class Self, class Visit>
  static void walk(Self& self, const std::string& prefix, Visit&& visit);
  template <class Convert>
  void replace(Convert&& convert);

  std::string name_;
  const Module* parent_ = nullptr;
  std::deque<Entry> entries_;  // a deque: references to its elements stay valid
  std::vector<std::unique_ptr<Module>> children_;
};

// The last step of making a model: fills all parameters of the tree from (seed, path) and numbers its stochastic
// layers. Call it on the root; again, it starts the model afresh.
void initialize(Module& root, std::uint64_t seed);

// The base of layers that draw random numbers. Each has a fixed number in its root (in tree order, whatever the rates),
// so that what it draws depends on (seed, step, layer, sample) only: not on micro-batches, other layers' rates or
// order.
class StochasticLayer : public Module {
 public:
  // The stream of this layer in the forward that `context` describes.
  Generator generator(const ForwardContext& context) const {
    return Generator(context.seed, static_cast<std::uint64_t>(context.step * layers_ + layer_), context.first_sample);
  }
  // Whether a forward that trains draws from it: for who records a step's kernels (engine/capture.h), which would draw
  // the same again and again.
  virtual bool draws() const { return true; }
  std::int64_t layer() const { return layer_; }
  std::int64_t layers() const { return layers_; }

 private:
  friend std::int64_t number_streams(Module& root);
  std::int64_t layer_ = 0, layers_ = 1;
};

// Whether a forward of `root` that trains draws random numbers.
bool draws_random_numbers(const Module& root);

// Numbers the stochastic layers below `root`; returns how many there are. initialize() calls it.
std::int64_t number_streams(Module& root);

}  // namespace polygrad

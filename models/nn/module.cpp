#include "models/nn/module.h"

#include <algorithm>
#include <limits>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/format.h"

namespace polygrad {

namespace {

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

void collect_stochastic(const Module& module, std::vector<StochasticLayer*>& layers) {
  for (const auto& child : module.children()) {
    if (auto* layer = dynamic_cast<StochasticLayer*>(child.get())) layers.push_back(layer);
    collect_stochastic(*child, layers);
  }
}

}  // namespace

std::string Module::path() const { return parent_ ? join(parent_->path(), name_) : name_; }

void Module::adopt(std::string name, std::unique_ptr<Module> module) {
  const auto same = [&](const auto& other) { return other->name_ == name; };
  if (std::any_of(children_.begin(), children_.end(), same)) {
    throw InternalError(format("[module] {} has two children named '{}'", path(), name));
  }
  module->name_ = std::move(name);
  module->parent_ = this;
  children_.push_back(std::move(module));
}

const Tensor& Module::enter(std::string name, Tensor tensor, const Init& init, bool trained) {
  const auto same = [&](const Entry& other) { return other.name == name; };
  if (std::any_of(entries_.begin(), entries_.end(), same)) {
    throw InternalError(format("[module] {} has two parameters named '{}'", path(), name));
  }
  return entries_.emplace_back(Entry{std::move(name), std::move(tensor), init, trained}).tensor;
}

const Tensor& Module::parameter(std::string name, const Shape& shape, const Init& init) {
  Tensor tensor = full(shape, std::numeric_limits<double>::quiet_NaN());
  tensor.set_requires_grad(true);
  return enter(std::move(name), std::move(tensor), init, true);
}

const Tensor& Module::buffer(std::string name, const Shape& shape, double value, DType dtype) {
  TensorOptions options;
  options.dtype = dtype;
  return enter(std::move(name), full(shape, value, options), Init::constant(value), false);
}

template <class Self, class Visit>
void Module::walk(Self& self, const std::string& prefix, Visit&& visit) {
  for (auto& entry : self.entries_) visit(join(prefix, entry.name), entry);
  for (const auto& child : self.children_) walk<Self>(*child, join(prefix, child->name_), visit);
}

NamedTensors Module::named_parameters() const {
  NamedTensors result;
  walk(*this, "", [&](std::string path, const Entry& entry) {
    if (entry.trained) result.emplace_back(std::move(path), entry.tensor);
  });
  return result;
}

NamedTensors Module::state() const {
  NamedTensors result;
  walk(*this, "", [&](std::string path, const Entry& entry) { result.emplace_back(std::move(path), entry.tensor); });
  return result;
}

Tensor Module::find(const std::string& path) const {
  Tensor result;
  walk(*this, "", [&](const std::string& candidate, const Entry& entry) {
    if (candidate == path) result = entry.tensor;
  });
  return result;
}

std::uint64_t Module::parameter_count() const {
  std::uint64_t count = 0;
  for (const auto& [path, tensor] : named_parameters()) count += static_cast<std::uint64_t>(tensor.numel());
  return count;
}

Device Module::device() const {
  if (!entries_.empty()) return entries_.front().tensor.device();
  for (const auto& child : children_) {
    if (!child->state().empty()) return child->device();
  }
  return Device::cpu();
}

template <class Convert>
void Module::replace(Convert&& convert) {
  walk(*this, "", [&](const std::string&, Entry& entry) {
    Tensor next = convert(entry.tensor.detach());
    if (entry.trained) next.set_requires_grad(true);
    entry.tensor = next;
  });
}

void Module::to(Device device) {
  replace([&](const Tensor& tensor) { return tensor.to(device); });
}

void Module::to(DType dtype) {
  if (!is_floating(dtype)) throw DTypeError(format("[module] to({}): expected a floating dtype", to_string(dtype)));
  replace([&](const Tensor& tensor) { return is_floating(tensor.dtype()) ? tensor.to(dtype) : tensor; });
}

void Module::zero_grad() {
  for (auto& [path, tensor] : named_parameters()) tensor.zero_grad();
}

bool draws_random_numbers(const Module& root) {
  const auto* layer = dynamic_cast<const StochasticLayer*>(&root);
  if (layer != nullptr && layer->draws()) return true;
  return std::any_of(root.children().begin(), root.children().end(),
                     [](const auto& child) { return draws_random_numbers(*child); });
}

void initialize(Module& root, std::uint64_t seed) {
  Module::walk(root, "",
               [&](const std::string& path, Module::Entry& entry) { fill(entry.tensor, entry.init, seed, path); });
  number_streams(root);
}

std::int64_t number_streams(Module& root) {
  std::vector<StochasticLayer*> layers;
  if (auto* layer = dynamic_cast<StochasticLayer*>(&root)) layers.push_back(layer);
  collect_stochastic(root, layers);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i]->layer_ = static_cast<std::int64_t>(i);
    layers[i]->layers_ = static_cast<std::int64_t>(layers.size());
  }
  return static_cast<std::int64_t>(layers.size());
}

}  // namespace polygrad

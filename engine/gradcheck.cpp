// gradcheck: central differences in f64; see gradcheck.h.
//
// The output y of f becomes the number L = sum w_i y_i with fixed random weights w. Its gradient by the graph is
// compared, element by element, with (L(x + h) - L(x - h)) / 2h. Plain loops and no ops: nothing here depends on the
// code that it judges.
#include "engine/gradcheck.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/generator.h"

namespace polygrad {
namespace {

// Where each element of a tensor lies, relative to its first, in row-major order of the indices.
std::vector<std::int64_t> element_offsets(const Shape& shape, const Shape& strides) {
  std::vector<std::int64_t> offsets;
  offsets.reserve(static_cast<std::size_t>(shape.numel()));
  if (shape.numel() == 0) return offsets;
  std::int64_t index[kMaxDims] = {};
  std::int64_t offset = 0;
  while (true) {
    offsets.push_back(offset);
    int d = shape.dim() - 1;
    for (; d >= 0; --d) {
      offset += strides[d];
      if (++index[d] < shape[d]) break;
      offset -= strides[d] * shape[d];
      index[d] = 0;
    }
    if (d < 0) return offsets;
  }
}

// The row-major index number `position` of a shape: "[1, 0, 2]".
std::string index_text(const Shape& shape, std::int64_t position) {
  std::vector<std::int64_t> index(shape.size());
  for (int d = shape.dim() - 1; d >= 0; --d) {
    index[static_cast<std::size_t>(d)] = position % shape[d];
    position /= shape[d];
  }
  std::string text = "[";
  for (std::size_t d = 0; d < index.size(); ++d) text += (d == 0 ? "" : ", ") + std::to_string(index[d]);
  return text + "]";
}

// A private copy of one differentiable input, with the same strides, so that f sees the layout it was given. Elements
// that share a place in memory (an expanded input) are moved together: the derivative by the place is then the sum of
// their gradients.
class Variable {
 public:
  explicit Variable(const Tensor& source) : offsets_(element_offsets(source.shape(), source.strides())) {
    std::int64_t first = 0, extent = 0;
    for (const std::int64_t offset : offsets_) {
      first = std::min(first, offset);
      extent = std::max(extent, offset + 1);
    }
    for (std::int64_t& offset : offsets_) offset -= first;
    const Tensor memory = Tensor::empty({extent - first}, {.dtype = DType::f64});
    leaf_ = make_view(memory, source.shape(), source.strides(), -first);
    const std::vector<double> values = source.detach().to_vector<double>();
    data_ = static_cast<double*>(memory.ref().data);
    std::fill(data_, data_ + memory.numel(), 0.0);
    for (std::size_t i = 0; i < offsets_.size(); ++i) data_[offsets_[i]] = values[i];
    leaf_.set_requires_grad(true);
    first_element_.assign(static_cast<std::size_t>(memory.numel()), -1);
    for (std::size_t i = offsets_.size(); i-- > 0;) {
      first_element_[static_cast<std::size_t>(offsets_[i])] = static_cast<std::int64_t>(i);
    }
  }

  const Tensor& leaf() const { return leaf_; }
  std::size_t places() const { return first_element_.size(); }
  // The first element that lies at a place; -1 for a gap between strided elements.
  std::int64_t element_at(std::size_t place) const { return first_element_[place]; }
  double& value(std::size_t place) { return data_[place]; }
  std::vector<double> values() const { return {data_, data_ + places()}; }

  // The analytic gradient by place.
  std::vector<double> by_place(const Tensor& gradient) const {
    std::vector<double> sums(places(), 0.0);
    const std::vector<double> elements = gradient.to_vector<double>();
    for (std::size_t i = 0; i < elements.size(); ++i) sums[static_cast<std::size_t>(offsets_[i])] += elements[i];
    return sums;
  }

 private:
  Tensor leaf_;
  double* data_ = nullptr;
  std::vector<std::int64_t> offsets_;
  std::vector<std::int64_t> first_element_;
};

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

GradcheckResult failure(double error, std::string message) { return {false, error, std::move(message)}; }

// Random weights of either sign, none near zero.
std::vector<double> random_weights(std::int64_t count, std::uint64_t seed) {
  Generator generator(seed);
  std::vector<double> weights(static_cast<std::size_t>(count));
  for (double& weight : weights) {
    weight = generator.uniform(0.5, 1.5);
    if (generator.bernoulli(0.5)) weight = -weight;
  }
  return weights;
}

class Checker {
 public:
  Checker(const std::function<Tensor(const std::vector<Tensor>&)>& f, std::vector<Tensor> inputs,
          const GradcheckOptions& options)
      : f_(f), options_(options), arguments_(std::move(inputs)) {
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (!arguments_[i].defined() || !arguments_[i].requires_grad()) continue;
      if (arguments_[i].dtype() != DType::f64) {
        throw DTypeError(format("[gradcheck] input {} is {}; expected f64, in which differences are sharp", i,
                                describe(arguments_[i])));
      }
      variables_.emplace_back(arguments_[i]);
      positions_.push_back(i);
      arguments_[i] = variables_.back().leaf();
    }
    if (variables_.empty()) {
      throw ValueError("[gradcheck] no input requires a gradient; call set_requires_grad(true) on those to check");
    }
  }

  GradcheckResult run() {
    const Tensor output = f_(arguments_);
    if (output.dtype() != DType::f64) {
      throw DTypeError(format("[gradcheck] the output is {}; expected f64", describe(output)));
    }
    if (!output.requires_grad()) {
      return failure(0, "the output depends on no input that requires a gradient");
    }
    const std::vector<double> values = output.to_vector<double>();
    if (!same_bits(values, evaluate())) return failure(0, "f is not deterministic: two calls gave different values");
    weights_ = random_weights(output.numel(), options_.seed);

    std::vector<Tensor> leaves;
    std::vector<std::vector<double>> before;
    for (const Variable& variable : variables_) {
      leaves.push_back(variable.leaf());
      before.push_back(variable.values());
    }
    const Tensor weights = Tensor::from_vector(weights_, output.shape());
    const std::vector<Tensor> gradients = grad(output, leaves, weights);
    if (!same_bits(weights.to_vector<double>(), weights_)) {
      return failure(0, "a backward rule wrote into the gradient it was given");
    }
    GradcheckResult result;
    for (std::size_t i = 0; i < variables_.size() && result.ok; ++i) {
      if (!same_bits(variables_[i].values(), before[i])) {
        return failure(0, format("input {}: it was changed by f or by a backward rule", positions_[i]));
      }
      const double largest_so_far = result.max_error;
      result = check_input(i, variables_[i].by_place(gradients[i]));
      result.max_error = std::max(result.max_error, largest_so_far);
    }
    return result;
  }

 private:
  std::vector<double> evaluate() const {
    const NoGradGuard no_grad;
    return f_(arguments_).to_vector<double>();
  }

  // dL/d(place) by central differences.
  double numeric(Variable& variable, std::size_t place) {
    const double x = variable.value(place);
    const double h = options_.step * std::max(1.0, std::abs(x));
    const double above = x + h, below = x - h;  // as rounded: their difference is exact
    variable.value(place) = above;
    const std::vector<double> y_above = evaluate();
    variable.value(place) = below;
    const std::vector<double> y_below = evaluate();
    variable.value(place) = x;
    // Differences first, so that a large output doesn't swallow them.
    double sum = 0;
    for (std::size_t i = 0; i < weights_.size(); ++i) sum += weights_[i] * (y_above[i] - y_below[i]);
    return sum / (above - below);
  }

  GradcheckResult check_input(std::size_t which, const std::vector<double>& analytic) {
    Variable& variable = variables_[which];
    const Shape& shape = variable.leaf().shape();
    std::vector<double> expected(variable.places(), 0.0);
    double largest = 0;
    for (std::size_t place = 0; place < variable.places(); ++place) {
      if (variable.element_at(place) < 0) continue;
      expected[place] = numeric(variable, place);
      largest = std::max(largest, std::abs(expected[place]));
    }
    GradcheckResult result;
    const double scale = std::max(1.0, largest);
    for (std::size_t place = 0; place < variable.places(); ++place) {
      if (variable.element_at(place) < 0) continue;
      const double error = std::abs(analytic[place] - expected[place]) / scale;
      if (error <= result.max_error) continue;  // false for NaN
      result.max_error = error;
      if (error <= options_.tolerance) continue;
      result.ok = false;
      result.message = format(
          "input {} {}, element {}: the backward rule gives {}, central differences {}; error {:.3g}, "
          "tolerance {:.3g}",
          positions_[which], to_string(shape), index_text(shape, variable.element_at(place)), analytic[place],
          expected[place], error, options_.tolerance);
      if (std::isnan(error)) return result;
    }
    if (result.ok && options_.require_nonzero && largest <= options_.tolerance) {
      return failure(
          result.max_error,
          format("input {} {}: no element's derivative exceeds the tolerance {:.3g} (largest {:.3g}), so a rule "
                 "that returns zeros would pass; choose other values, or allow it with require_nonzero = false",
                 positions_[which], to_string(shape), options_.tolerance, largest));
    }
    return result;
  }

  const std::function<Tensor(const std::vector<Tensor>&)>& f_;
  const GradcheckOptions& options_;
  std::vector<Tensor> arguments_;
  std::vector<Variable> variables_;     // the inputs that require a gradient,
  std::vector<std::size_t> positions_;  // and where they stand among the arguments
  std::vector<double> weights_;
};

}  // namespace

GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& f, std::vector<Tensor> inputs,
                          const GradcheckOptions& options) {
  return Checker(f, std::move(inputs), options).run();
}

}  // namespace polygrad

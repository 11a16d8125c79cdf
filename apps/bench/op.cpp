// polygrad_bench op: the time of one op's forward and backward, a nanosecond figure for each element of its input.
#include <algorithm>
#include <functional>

#include "apps/bench/bench.h"
#include "apps/bench/ceiling.h"
#include "apps/bench/report.h"
#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/format.h"
#include "engine/parallel.h"
#include "ops/binary.h"
#include "ops/dropout.h"
#include "ops/norm.h"
#include "ops/reduce.h"
#include "ops/softmax.h"
#include "ops/unary.h"
#include "ops/view.h"

namespace polygrad::bench {
namespace {

struct Subject {
  const char* name;
  // inputs[0] is the measured tensor; the others are of its shape, or of its last dimension.
  std::function<Tensor(const Tensor& x, const Tensor& other, const Tensor& row)> run;
};

const std::vector<Subject>& subjects() {
  using T = const Tensor&;
  static const std::vector<Subject> list = {
      {"neg", [](T x, T, T) { return neg(x); }},
      {"exp", [](T x, T, T) { return exp(x); }},
      {"tanh", [](T x, T, T) { return tanh(x); }},
      {"sigmoid", [](T x, T, T) { return sigmoid(x); }},
      {"relu", [](T x, T, T) { return relu(x); }},
      {"elu", [](T x, T, T) { return elu(x); }},
      {"gelu", [](T x, T, T) { return gelu(x); }},
      {"gelu_tanh", [](T x, T, T) { return gelu_tanh(x); }},
      {"silu", [](T x, T, T) { return silu(x); }},
      {"softplus", [](T x, T, T) { return softplus(x); }},
      {"add", [](T x, T other, T) { return add(x, other); }},
      {"mul", [](T x, T other, T) { return mul(x, other); }},
      {"add_row", [](T x, T, T row) { return add(x, row); }},
      {"sum", [](T x, T, T) { return sum(x); }},
      {"softmax", [](T x, T, T) { return softmax(x, -1); }},
      {"log_softmax", [](T x, T, T) { return log_softmax(x, -1); }},
      {"layer_norm", [](T x, T, T row) { return layer_norm(x, row, row, 1e-5); }},
      {"clone", [](T x, T, T) { return x.clone(); }},
      {"transpose", [](T x, T, T) { return transpose(x, -1, -2).contiguous(); }},
      {"residual_add", [](T x, T other, T) { return residual_add(x, other); }},
      {"dropout",
       [](T x, T, T) {
         Generator generator(1);
         return dropout(x, 0.1, generator);
       }},
  };
  return list;
}

// "8224x768" as (8224, 768).
Shape parse_shape(const std::string& text) {
  Shape shape;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find('x', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const bool digits = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoll(part) < 1 || shape.dim() == kMaxDims) {
      throw ValueError(
          format("[op] --shape {}: expected up to {} positive sizes joined by x, such as 8224x768", text, kMaxDims));
    }
    shape.push_back(std::stoll(part));
    begin = end + 1;
  }
  return shape;
}

// The median time of a run, over at least 0.6 s or `runs` runs.
double median_time(int runs, const std::function<double()>& run) {
  std::vector<double> times;
  const double start = seconds();
  while (static_cast<int>(times.size()) < runs || seconds() - start < 0.6) times.push_back(run());
  return median(times);
}

}  // namespace

std::string op_names() {
  std::string names;
  for (const Subject& subject : subjects()) names += (names.empty() ? "" : " ") + std::string(subject.name);
  return names;
}

std::string run_op(const OpOptions& options, const Common& common) {
  const auto found = std::find_if(subjects().begin(), subjects().end(),
                                  [&](const Subject& subject) { return options.name == subject.name; });
  if (found == subjects().end()) {
    throw ValueError(format("[op] --name {}: no such op here; expected one of: {}", options.name, op_names()));
  }
  const Shape shape = parse_shape(options.shape);
  if (shape.dim() < 2 && options.name == "transpose") {
    throw ValueError(format("[op] --shape {}: transpose needs two dimensions", options.shape));
  }
  Generator generator(1);
  const Tensor x = randn(shape, {.requires_grad = true, .generator = &generator});
  const Tensor other = randn(shape, {.generator = &generator}), row = randn({shape.back()}, {.generator = &generator});
  const double elements = static_cast<double>(x.numel());

  const auto forward = [&] {
    const NoGradGuard no_grad;
    const double start = seconds();
    const Tensor y = found->run(x, other, row);
    return seconds() - start;
  };
  const Tensor gradient = ones_like(found->run(x, other, row));
  const auto backward = [&] {
    Tensor leaf = x;
    leaf.zero_grad();
    const Tensor y = found->run(x, other, row);
    const double start = seconds();
    y.backward(gradient);
    return seconds() - start;
  };
  forward();
  backward();
  const double forward_ns = 1e9 * median_time(common.pairs, forward) / elements;
  const double backward_ns = 1e9 * median_time(common.pairs, backward) / elements;
  say(common.quiet, format("{} {}: forward {:.3f}, backward {:.3f} ns an element", options.name, options.shape,
                           forward_ns, backward_ns));
  return Report("op")
      .add("name", options.name)
      .add("shape", shape.vec())
      .add("ns_per_element", forward_ns)
      .add("backward_ns_per_element", backward_ns)
      .line();
}

}  // namespace polygrad::bench

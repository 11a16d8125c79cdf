// Rows of the pre_norm family. The twins compose norm, linear, gelu and residual_add.
#include "ops/pre_norm.h"

#include "tests/op_cases/op_case.h"
#include "tests/reference/pre_norm.h"

namespace polygrad::testing {
namespace {

using Sizes = std::vector<std::int64_t>;
using reference::Array;
using reference::Stream;

constexpr double kEps = 1e-5;

Generator generator_of(const Stream& stream) { return Generator(stream.seed, stream.offset, stream.first_sample); }

// x, norm.weight, norm.bias. An expanded row would be constant: nothing to normalise.
std::vector<OpInput> norm_inputs(const Sizes& x) {
  std::vector<OpInput> inputs = {{x}, {{x.back()}, Fill::positive}, {{x.back()}}};
  inputs[0].any_layout = x.size() > 1;
  return inputs;
}

OpRow linear_row(const std::string& name, const Sizes& x, std::int64_t out) {
  OpRow row;
  row.op = "pre_norm_linear";
  row.name = name;
  row.inputs = norm_inputs(x);
  row.inputs.push_back({{out, x.back()}});
  row.inputs.push_back({{out}});
  row.run = [](const Tensors& t) { return pre_norm_linear(t[0], {t[1], t[2], kEps}, {t[3], t[4]}); };
  row.reference = [](const Arrays& a) { return reference::pre_norm_linear(a[0], a[1], a[2], kEps, a[3], a[4]); };
  row.zero_gradient = Array::count(x) == 0;
  return row;
}

OpRow residual_row(const std::string& name, const Sizes& x, std::int64_t out, double p = 0, const Stream& stream = {}) {
  OpRow row;
  row.op = "linear_residual";
  row.name = name;
  Sizes residual = x;
  residual.back() = out;
  row.inputs = {{residual}, {x}, {{out, x.back()}}, {{out}}};
  row.run = [=](const Tensors& t) {
    Generator generator = generator_of(stream);
    return linear_residual(t[0], t[1], {t[2], t[3]}, {p, p > 0 ? &generator : nullptr});
  };
  row.reference = [=](const Arrays& a) { return reference::linear_residual(a[0], a[1], a[2], a[3], p, stream); };
  row.zero_gradient = Array::count(residual) == 0;
  return row;
}

OpRow mlp_row(const std::string& name, const Sizes& x, std::int64_t hidden, double p = 0, const Stream& stream = {}) {
  OpRow row;
  row.op = "pre_norm_mlp";
  row.name = name;
  row.inputs = norm_inputs(x);
  const std::int64_t dim = x.back();
  for (const Sizes& shape : {Sizes{hidden, dim}, Sizes{hidden}, Sizes{dim, hidden}, Sizes{dim}}) {
    row.inputs.push_back({shape});
  }
  row.run = [=](const Tensors& t) {
    Generator generator = generator_of(stream);
    return pre_norm_mlp(t[0], {t[1], t[2], kEps}, {t[3], t[4]}, {t[5], t[6]}, {p, p > 0 ? &generator : nullptr});
  };
  row.reference = [=](const Arrays& a) {
    return reference::pre_norm_mlp(a[0], {a[1], a[2], a[3], a[4], a[5], a[6]}, kEps, p, stream);
  };
  row.zero_gradient = Array::count(x) == 0;
  return row;
}

}  // namespace

std::vector<OpRow> pre_norm_rows() {
  const Stream stream{.seed = 4, .offset = 3, .first_sample = 2};
  return {
      linear_row("a vector", {6}, 4),
      linear_row("a batch", {2, 3, 5}, 7),
      linear_row("one output", {3, 4}, 1),
      linear_row("no rows", {0, 4}, 3),
      residual_row("a vector", {5}, 3),
      residual_row("a batch", {2, 3, 4}, 5),
      residual_row("drop path", {6, 2, 3}, 4, 0.4, stream),
      residual_row("no rows", {0, 4}, 3),
      mlp_row("a vector", {5}, 7),
      mlp_row("a batch", {2, 3, 4}, 6),
      mlp_row("drop path", {5, 2, 3}, 4, 0.4, stream),
      mlp_row("one hidden", {4, 3}, 1),
      mlp_row("no rows", {0, 4}, 3),
  };
}

}  // namespace polygrad::testing

// How a row of the op-case table is checked; see op_case.h.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/generator.h"
#include "engine/gradcheck.h"
#include "engine/testing.h"
#include "ops/binary.h"
#include "ops/precision.h"
#include "tests/op_cases/op_case.h"

namespace polygrad::testing {
namespace {

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

enum class Layout { contiguous, transposed, expanded };

const char* to_string(Layout layout) {
  switch (layout) {
    case Layout::contiguous:
      return "contiguous";
    case Layout::transposed:
      return "transposed";
    case Layout::expanded:
      return "expanded";
  }
  return "";
}

// Where the elements of an input lie: a row-major base, seen through strides.
struct Placement {
  Shape base, shape, strides;
};

Placement place(const OpInput& input, Layout layout) {
  const Shape shape(input.shape);
  Placement p{shape, shape, shape.contiguous_strides()};
  if (!input.any_layout || layout == Layout::contiguous || shape.dim() == 0) return p;
  if (layout == Layout::transposed) {
    const int last = shape.dim() - 1;
    if (last == 0) {  // every second element
      p.base[0] = 2 * shape[0];
      p.strides[0] = 2;
    } else {  // the last two dimensions lie in memory in the other order
      std::swap(p.base[last - 1], p.base[last]);
      p.strides = p.base.contiguous_strides();
      std::swap(p.strides[last - 1], p.strides[last]);
    }
    return p;
  }
  for (int i = 0; i < shape.dim(); ++i) {
    if (shape[i] <= 1) continue;
    p.base[i] = 1;
    p.strides = p.base.contiguous_strides();
    p.strides[i] = 0;
    break;
  }
  return p;
}

bool changes_any(const OpRow& row, Layout layout) {
  return std::any_of(row.inputs.begin(), row.inputs.end(), [&](const OpInput& input) {
    const Placement p = place(input, layout), plain = place(input, Layout::contiguous);
    return p.strides != plain.strides && p.shape.numel() > 0;
  });
}

bool is_floating(Fill fill) { return fill != Fill::ids && fill != Fill::mask; }

// Values that f32 holds exactly, so that the f32 and the f64 run see the same inputs.
std::vector<float> draw(const OpInput& input, std::size_t position, std::int64_t count) {
  Generator generator(derive_seed(20240, position, static_cast<std::uint64_t>(count)));
  std::vector<float> values(static_cast<std::size_t>(count));
  const std::vector<std::int64_t> order = generator.permutation(count);
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (input.fill) {
      case Fill::normal:
        values[i] = static_cast<float>(generator.normal());
        break;
      case Fill::positive:
        values[i] = 0.5f + 1.5f * generator.uniform();
        break;
      case Fill::distinct: {  // a grid in random order: no two equal, none within 0.1 of 0, inputs off each other's
                              // grid
        const double step =
            (static_cast<double>(order[i]) + 0.3 + 0.17 * static_cast<double>(position)) / static_cast<double>(count);
        values[i] = static_cast<float>((0.1 + 2.5 * step) * (generator.bernoulli(0.5) ? 1 : -1));
        break;
      }
      case Fill::ids:
        values[i] = static_cast<float>(generator.integer(0, input.bound));
        break;
      case Fill::mask:
        values[i] = generator.bernoulli(2.0 / 3) ? 1.0f : 0.0f;
        break;
      case Fill::unit:
        values[i] = generator.uniform();
        break;
    }
  }
  return values;
}

template <class T>
Tensor base_tensor(const std::vector<float>& values, const Shape& shape) {
  return Tensor::from_vector(std::vector<T>(values.begin(), values.end()), shape);
}

Tensor make_input(const OpInput& input, std::size_t position, Layout layout, DType floating, Device device = {}) {
  const Placement p = place(input, layout);
  const std::vector<float> values = draw(input, position, p.base.numel());
  Tensor base;
  if (input.fill == Fill::ids) {
    base = base_tensor<std::int64_t>(values, p.base);
  } else if (input.fill == Fill::mask) {
    base = base_tensor<bool>(values, p.base);
  } else {
    base = floating == DType::f64 ? base_tensor<double>(values, p.base) : base_tensor<float>(values, p.base);
  }
  base = base.to(device);
  const bool plain = p.base == p.shape && p.strides == p.base.contiguous_strides();
  Tensor tensor = plain ? base : make_view(base, p.shape, p.strides, 0);
  tensor.set_requires_grad(input.differentiable && is_floating(input.fill));
  return tensor;
}

Tensors make_inputs(const OpRow& row, Layout layout, DType floating, Device device = {}) {
  Tensors inputs;
  for (std::size_t i = 0; i < row.inputs.size(); ++i) {
    inputs.push_back(make_input(row.inputs[i], i, layout, floating, device));
    if (!row.gradient && inputs.back().requires_grad()) inputs.back().set_requires_grad(false);
  }
  return inputs;
}

reference::Array to_array(const Tensor& tensor) {
  reference::Array array(tensor.shape().vec());
  array.data = tensor.detach().to(Device::cpu()).to(DType::f64).to_vector<double>();
  return array;
}

reference::Array reference_of(const OpRow& row, Layout layout) {
  Arrays arrays;
  for (const Tensor& input : make_inputs(row, layout, DType::f64)) arrays.push_back(to_array(input));
  return row.reference(arrays);
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return polygrad::to_string(Shape(shape)); }

// "" where `got` is close to `expected`, within `tolerance` of the largest value or `least`; NaN only where NaN is
// expected.
std::string compare(const reference::Array& expected, const reference::Array& got, double tolerance, double least = 1) {
  if (expected.shape != got.shape) {
    return text("shape: expected ", shape_text(expected.shape), ", got ", shape_text(got.shape));
  }
  double largest = least;
  for (double v : expected.data) largest = std::isfinite(v) ? std::max(largest, std::abs(v)) : largest;
  for (std::size_t i = 0; i < expected.data.size(); ++i) {
    const double want = expected.data[i], have = got.data[i];
    if (want == have || (std::isnan(want) && std::isnan(have))) continue;
    if (std::abs(want - have) <= tolerance * largest) continue;  // false for NaN
    return text("element ", i, ": expected ", want, ", got ", have, "; difference ", std::abs(want - have),
                ", tolerance ", tolerance * largest);
  }
  return "";
}

// The length of the difference, relative to the length of `expected`; 0 where that is empty or has no length, and over
// finite numbers only: compare() has looked at the others, and at single elements.
double normalised_error(const reference::Array& expected, const reference::Array& got) {
  double difference = 0, length = 0;
  for (std::size_t i = 0; i < expected.data.size(); ++i) {
    const double want = expected.data[i], have = got.data[i];
    if (!std::isfinite(want) || !std::isfinite(have)) continue;
    difference += (want - have) * (want - have);
    length += want * want;
  }
  return length > 0 ? std::sqrt(difference / length) : 0;
}

std::string check_value(const OpRow& row, Layout layout, DType floating) {
  const PoisonGuard poison;
  const Tensor y = row.run(make_inputs(row, layout, floating));
  if (polygrad::is_floating(y.dtype()) && y.dtype() != floating && row.gradient) {
    return text("the result's dtype is ", polygrad::to_string(y.dtype()), "; expected ", polygrad::to_string(floating));
  }
  return compare(reference_of(row, layout), to_array(y),
                 floating == DType::f64 ? row.f64_tolerance : row.f32_tolerance);
}

std::string check_gradient(const OpRow& row, Layout layout) {
  const PoisonGuard poison;
  GradcheckOptions options;
  options.tolerance = row.gradient_tolerance;
  // Repeated elements can cancel a gradient (softmax along them), and an empty input has none; but for these the
  // contiguous run must show one.
  options.require_nonzero = layout == Layout::contiguous && !row.zero_gradient &&
                            std::none_of(row.inputs.begin(), row.inputs.end(), [](const OpInput& input) {
                              return reference::Array::count(input.shape) == 0;
                            });
  return gradcheck(row.run, make_inputs(row, layout, DType::f64), options).message;
}

std::vector<reference::Array> gradients(const OpRow& row, Layout layout, DType floating, Device device = {}) {
  const PoisonGuard poison;
  const Tensors inputs = make_inputs(row, layout, floating, device);
  const Tensor y = row.run(inputs);
  Tensors leaves;
  std::copy_if(inputs.begin(), inputs.end(), std::back_inserter(leaves),
               [](const Tensor& input) { return input.requires_grad(); });
  // The upstream gradient: uniform in [-1, 1], exact in f32, as a transposed view where there are two dimensions.
  const OpInput upstream{y.shape().vec(), Fill::unit, 0, false, true};
  Tensor g = make_input(upstream, 99, layout == Layout::contiguous ? layout : Layout::transposed, floating, device);
  std::vector<reference::Array> result;
  for (const Tensor& gradient : grad(y, leaves, g)) result.push_back(to_array(gradient));
  return result;
}

std::string check_f32_gradient(const OpRow& row, Layout layout) {
  const auto expected = gradients(row, layout, DType::f64), got = gradients(row, layout, DType::f32);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::string wrong = compare(expected[i], got[i], 10 * row.f32_tolerance);
    if (!wrong.empty()) return text("differentiable input ", i, ": ", wrong);
  }
  return "";
}

// 16-bit types are storage: an op that computes refuses them when it is called, and one that moves elements has their
// gradient. What must not be is a call that succeeds and a backward that fails.
std::string check_narrow_gradient(const OpRow& row, DType narrow) {
  const auto rounded = [narrow](const Tensor& x) {
    return polygrad::is_floating(x.dtype()) ? x.detach().to(narrow) : x;
  };
  Tensors leaves, inputs, wide_leaves, wide_inputs;
  for (const Tensor& input : make_inputs(row, Layout::contiguous, DType::f32)) {
    inputs.push_back(rounded(input));
    wide_inputs.push_back(polygrad::is_floating(input.dtype()) ? inputs.back().to(DType::f32) : input);
    if (!input.requires_grad()) continue;
    leaves.push_back(inputs.back().set_requires_grad(true));
    wide_leaves.push_back(wide_inputs.back().set_requires_grad(true));
  }
  const PoisonGuard poison;
  Tensor y;
  try {
    y = row.run(inputs);
  } catch (const DTypeError&) {
    return "";
  }
  const Tensor g = rounded(make_input({y.shape().vec(), Fill::unit}, 99, Layout::contiguous, DType::f32));
  const Tensors expected = grad(row.run(wide_inputs), wide_leaves, g.to(DType::f32)), got = grad(y, leaves, g);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::string wrong = compare(to_array(expected[i]), to_array(got[i]), 0x1p-8);
    if (!wrong.empty()) return text("differentiable input ", i, ": ", wrong);
  }
  return "";
}

template <class Check>
std::string attempt(const char* what, Layout layout, const Check& check) {
  std::string wrong;
  try {
    wrong = check();
  } catch (const Error& error) {
    wrong = text("it threw: ", error.what());
  }
  return wrong.empty() ? "" : text(what, ", ", to_string(layout), " inputs: ", wrong);
}

}  // namespace

std::string check_row(const OpRow& row) {
  for (Layout layout : {Layout::contiguous, Layout::transposed, Layout::expanded}) {
    if (layout != Layout::contiguous && !changes_any(row, layout)) continue;
    std::string wrong = attempt("f64 value", layout, [&] { return check_value(row, layout, DType::f64); });
    if (wrong.empty()) {
      wrong = attempt("f32 value", layout, [&] { return check_value(row, layout, DType::f32); });
    }
    if (wrong.empty() && row.gradient) {
      wrong = attempt("gradient", layout, [&] { return check_gradient(row, layout); });
    }
    if (wrong.empty() && row.gradient) {
      wrong = attempt("f32 gradient", layout, [&] { return check_f32_gradient(row, layout); });
    }
    if (!wrong.empty()) return text(row.op, " (", row.name, "): ", wrong);
  }
  for (DType narrow : {DType::bf16, DType::f16}) {
    if (!row.gradient) break;
    const std::string wrong =
        attempt(polygrad::to_string(narrow), Layout::contiguous, [&] { return check_narrow_gradient(row, narrow); });
    if (!wrong.empty()) return text(row.op, " (", row.name, "): ", wrong);
  }
  return "";
}

std::string check_value(const OpRow& row) {
  return attempt("f64 value", Layout::contiguous, [&] { return check_value(row, Layout::contiguous, DType::f64); });
}

std::string check_gradient(const OpRow& row) {
  return attempt("gradient", Layout::contiguous, [&] { return check_gradient(row, Layout::contiguous); });
}

const std::set<std::string>& multiplying_ops() {
  static const std::set<std::string> ops = {"linear",     "linear_gelu", "matmul",       "pre_norm_linear",
                                            "layer_norm", "attention",   "attention_qkv"};
  return ops;
}

std::string check_precision(const OpRow& row, Precision precision, Device device) {
  const auto check = [&]() -> std::string {
    const PoisonGuard poison;
    const Tensors inputs = make_inputs(row, Layout::transposed, DType::f32);
    const Tensors there = make_inputs(row, Layout::transposed, DType::f32, device);
    const auto leaves_of = [](const Tensors& all) {
      Tensors leaves;
      std::copy_if(all.begin(), all.end(), std::back_inserter(leaves),
                   [](const Tensor& input) { return input.requires_grad(); });
      return leaves;
    };
    const Tensor wide = row.run(inputs);
    Tensor narrow;
    {
      const PrecisionGuard guard(precision, device);
      narrow = row.run(there);
    }
    if (!polygrad::is_floating(wide.dtype())) return compare(to_array(wide), to_array(narrow), 0);
    const DType narrow_dtype = precision == Precision::bf16 ? DType::bf16 : DType::f16;
    const DType result = multiplying_ops().count(row.op) ? narrow_dtype : DType::f32;
    if (narrow.dtype() != result && wide.dtype() == DType::f32) {
      return text("the result's dtype is ", polygrad::to_string(narrow.dtype()), "; expected ",
                  polygrad::to_string(result));
    }
    // Numbers that are sums of others' differences are as far off as those are.
    constexpr double kLeast = 0.1;
    std::string wrong = compare(to_array(wide), to_array(narrow), row.narrow_tolerance, kLeast);
    if (!wrong.empty() || leaves_of(inputs).empty() || !row.gradient) return wrong;
    // Of f16 a sixteenth, or gradients of x^9 would be infinite: a training's loss scale does this.
    const double scale = precision == Precision::f16 ? 0x1p-4 : 1;
    const Tensor g = make_input({wide.shape().vec(), Fill::unit}, 99, Layout::transposed, DType::f32).detach() * scale;
    const Tensors expected = grad(wide, leaves_of(inputs), g);
    const Tensors got = grad(narrow, leaves_of(there), g.to(device).to(narrow.dtype()));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      wrong = compare(to_array(expected[i]), to_array(got[i]), row.narrow_tolerance, kLeast);
      if (!wrong.empty()) return text("gradient of differentiable input ", i, ": ", wrong);
    }
    return "";
  };
  const std::string wrong = attempt(polygrad::to_string(precision), Layout::transposed, check);
  return wrong.empty() ? "" : text(row.op, " (", row.name, ") on ", polygrad::to_string(device), ": ", wrong);
}

std::string check_undefined(const OpRow& row, std::size_t input) {
  Tensors inputs = make_inputs(row, Layout::contiguous, DType::f32);
  inputs[input] = Tensor();
  std::string got;
  try {
    row.run(inputs);
    return "";
  } catch (const ValueError& error) {
    got = error.what();
  } catch (const Error& error) {
    got = text("no ValueError: ", error.what());
  }
  const bool named = got.rfind("[tensor]", 0) != 0 && got.find(" is an undefined tensor") != std::string::npos;
  return named ? "" : text(row.op, " (", row.name, ") without input ", input, ": ", got);
}

std::string check_device(const OpRow& row, Device device, std::vector<double>* results) {
  for (const DType floating : {DType::f64, DType::f32}) {
    for (const Layout layout : {Layout::contiguous, Layout::transposed, Layout::expanded}) {
      if (layout != Layout::contiguous && !changes_any(row, layout)) continue;
      const double tolerance = floating == DType::f64 ? row.f64_tolerance : row.f32_tolerance;
      const auto compare_with_cpu = [&](const reference::Array& cpu, const reference::Array& there, double allowed) {
        if (results != nullptr) results->insert(results->end(), there.data.begin(), there.data.end());
        const std::string wrong = compare(cpu, there, allowed);
        if (!wrong.empty() || floating != DType::f32) return wrong;
        const double error = normalised_error(cpu, there);
        return error <= 1e-6 ? "" : text("the normalised error is ", error, "; expected at most 1e-06");
      };
      std::string wrong = attempt(polygrad::to_string(floating), layout, [&] {
        const PoisonGuard poison;
        const Tensor y = row.run(make_inputs(row, layout, floating, device));
        if (y.device() != device) return text("the result is on ", polygrad::to_string(y.device()));
        return compare_with_cpu(to_array(row.run(make_inputs(row, layout, floating))), to_array(y), tolerance);
      });
      if (wrong.empty() && row.gradient) {
        wrong = attempt(floating == DType::f64 ? "f64 gradient" : "f32 gradient", layout, [&] {
          const auto cpu = gradients(row, layout, floating), there = gradients(row, layout, floating, device);
          for (std::size_t i = 0; i < cpu.size(); ++i) {
            const std::string different = compare_with_cpu(cpu[i], there[i], 10 * tolerance);
            if (!different.empty()) return text("differentiable input ", i, ": ", different);
          }
          return std::string();
        });
      }
      if (!wrong.empty()) return text(row.op, " (", row.name, ") on ", polygrad::to_string(device), ": ", wrong);
    }
  }
  return "";
}

bool supports(const OpRow& row, Device device, DType floating, bool gradient) {
  Tensors inputs, leaves;
  for (const Tensor& input : make_inputs(row, Layout::contiguous, DType::f32, device)) {
    const bool floats = polygrad::is_floating(input.dtype());
    inputs.push_back(floats ? input.detach().to(floating) : input);
    if (gradient && input.requires_grad()) leaves.push_back(inputs.back().set_requires_grad(true));
  }
  try {
    const Tensor y = row.run(inputs);
    if (gradient) grad(y, leaves, ones_like(y));
    synchronize(device);
    return true;
  } catch (const DTypeError&) {
    return false;
  } catch (const NotImplementedError&) {
    return false;
  }
}

reference::Array reference_value(const OpRow& row) { return reference_of(row, Layout::contiguous); }

}  // namespace polygrad::testing

// Init: how a parameter starts. Each parameter's numbers come from (seed, its path in the model) and from nothing else.
//
// Where this stands: below module.h, which stores an Init beside every parameter and runs them in initialize().
// So the values do not depend on the order of construction, on threads, on the device or on the build type, and a
// layer added elsewhere leaves all others as they were.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/tensor.h"

namespace polygrad {

struct Init {
  enum class Kind { constant, normal, uniform };
  Kind kind = Kind::constant;
  double value = 0;  // the constant, the standard deviation, or the bound

  static Init zeros() { return {Kind::constant, 0}; }
  static Init ones() { return {Kind::constant, 1}; }
  static Init constant(double value) { return {Kind::constant, value}; }
  // N(0, std^2). The truncated normal of the vision models cuts at +-2, 100 standard deviations away: it is this one.
  static Init normal(double std) { return {Kind::normal, std}; }
  // U(-bound, bound).
  static Init uniform(double bound) { return {Kind::uniform, bound}; }
  // U(+-1/sqrt(fan_in)): what a Linear or a Conv2d of torch starts from, weight and bias alike.
  static Init fan_in(std::int64_t fan_in);
};

// Fills `parameter` (f32 or f64, on any device; drawn in f32 on the CPU) as `init` says, from (seed, path).
void fill(Tensor& parameter, const Init& init, std::uint64_t seed, std::string_view path);

}  // namespace polygrad

// The table of op cases: every public op has rows here, and every row is checked in the same ways.
//
// For each row: the value against a naive f64 twin (tests/reference), f32 against f64, the gradient against central
// differences in f64, each with inputs laid out contiguous, transposed and expanded, and with fresh memory poisoned by
// NaN; and 16-bit leaves are refused by the call itself, or have the gradient that f32 has. A second pass runs each row
// under a PrecisionGuard, where the ops that multiply matrices give bf16. The mutation test multiplies each op's value
// or gradient by 1.001 and expects its rows to fail.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "engine/tensor.h"
#include "ops/precision.h"
#include "tests/reference/array.h"

namespace polygrad::testing {

enum class Fill {
  normal,    // standard normal
  positive,  // uniform in [0.5, 2]
  distinct,  // normal, no two equal and none near 0: for max, abs, relu
  ids,       // i64, uniform in [0, bound)
  mask,      // bool, true with probability 2/3
  unit,      // uniform in [0, 1)
};

struct OpInput {
  std::vector<std::int64_t> shape;
  Fill fill = Fill::normal;
  std::int64_t bound = 0;      // for ids
  bool differentiable = true;  // floating inputs only
  bool any_layout = true;      // false: always contiguous
};

using Tensors = std::vector<Tensor>;
using Arrays = std::vector<reference::Array>;

struct OpRow {
  std::string op;    // the public function's name, as given to record()
  std::string name;  // unique within the op: what is special about the row
  std::vector<OpInput> inputs;
  std::function<Tensor(const Tensors&)> run;
  // The naive twin. Ids and masks arrive as doubles.
  std::function<reference::Array(const Arrays&)> reference;
  bool gradient = true;          // false: the op is non_differentiable (or the row has no differentiable input)
  bool zero_gradient = false;    // the gradient is zero by its nature in this row (size 0): no failure
  double f64_tolerance = 1e-12;  // of the reference's largest value (at least 1)
  double f32_tolerance = 2e-6;   // likewise
  double gradient_tolerance = 1e-6;
  double narrow_tolerance = 1e-2;  // under a PrecisionGuard: of the largest value, and gradient, in f32
};

// One function per family, in tests/op_cases/<family>.cpp.
std::vector<OpRow> unary_rows();
std::vector<OpRow> binary_rows();
std::vector<OpRow> reduce_rows();
std::vector<OpRow> matmul_rows();
std::vector<OpRow> view_rows();
std::vector<OpRow> copy_rows();
std::vector<OpRow> index_rows();
std::vector<OpRow> softmax_rows();
std::vector<OpRow> norm_rows();
std::vector<OpRow> attention_rows();
std::vector<OpRow> dropout_rows();
std::vector<OpRow> patch_rows();
std::vector<OpRow> loss_rows();
std::vector<OpRow> pre_norm_rows();

// All of them.
std::vector<OpRow> all_rows();

// Runs every check of a row; "" where it passes, else what failed.
std::string check_row(const OpRow& row);

// Runs a row on another device and compares with the CPU: values and gradients, f64 and f32, with every layout of the
// inputs and poisoned memory. "" where they agree; `results`, where given, takes all numbers that came from there.
std::string check_device(const OpRow& row, Device device, std::vector<double>* results = nullptr);

// Whether the op takes inputs of this floating dtype on that device, and, where asked, has a gradient there; without a
// look at the numbers.
bool supports(const OpRow& row, Device device, DType floating, bool gradient);

// Parts of it, for the mutation test: the f64 value, and the f64 gradient, of contiguous inputs.
std::string check_value(const OpRow& row);
std::string check_gradient(const OpRow& row);
// On a device under PrecisionGuard(precision): value and gradient against f32's on the CPU. Ops that multiply matrices
// must give the guard's dtype, the others f32.
std::string check_precision(const OpRow& row, Precision precision, Device device = {});
// The ops that multiply matrices.
const std::set<std::string>& multiplying_ops();
// Runs the op with one input undefined: "" where it works without, or throws ValueError saying which argument is
// undefined.
std::string check_undefined(const OpRow& row, std::size_t input);
// What the twin says for contiguous inputs.
reference::Array reference_value(const OpRow& row);

}  // namespace polygrad::testing

// The op-case table: every row passes, every public op has rows, and every row would notice a wrong op.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/testing.h"
#include "ops/precision.h"
#include "tests/op_cases/op_case.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The functions that the headers of ops/ declare at the start of a line; operators and check_… are no ops.
std::set<std::string> declared_ops() {
  const std::set<std::string> kNoOps = {"check.h", "gemm_provider.h", "rounded_weights.h", "tf32.h"};
  const std::regex kDeclaration(
      R"((?:^|\n)(?:Tensor|void|double|AttentionNorms|std::pair<[^\n]*?>|std::vector<Tensor>) (\w+)\()");
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/ops")) {
    if (entry.path().extension() != ".h" || kNoOps.count(entry.path().filename())) continue;
    const std::string text = read_file(entry.path());
    for (std::sregex_iterator it(text.begin(), text.end(), kDeclaration), end; it != end; ++it) {
      const std::string name = (*it)[1];
      if (name != "operator" && name.rfind("check_", 0) != 0) names.insert(name);
    }
  }
  return names;
}

// Functions of ops/ that the table can't hold, and where they are tested instead.
const std::map<std::string, std::string> kElsewhere = {
    {"attention_norms", "tests/ops/attention_norms_test.cpp"},  // returns four numbers
    {"adamw_step", "tests/ops/optim_step_test.cpp"},            // these write in place
    {"sgd_step", "tests/ops/optim_step_test.cpp"},
    {"global_norm", "tests/ops/optim_step_test.cpp"},
    {"sum_squares", "tests/ops/optim_step_test.cpp"},
    {"scale_", "tests/ops/optim_step_test.cpp"},
    {"clip_factor", "tests/ops/optim_step_test.cpp"},
    {"clip_grad_norm", "tests/ops/optim_step_test.cpp"},
    {"ema_update", "tests/ops/optim_step_test.cpp"},
};

bool any_nonzero(const reference::Array& array) {
  return std::any_of(array.data.begin(), array.data.end(), [](double v) { return v != 0; });
}

// Whether the row's gradient is compared with one that isn't zero.
bool proves_gradient(const OpRow& row) {
  return row.gradient && !row.zero_gradient &&
         std::any_of(row.inputs.begin(), row.inputs.end(), [](const OpInput& input) {
           return input.differentiable && input.fill != Fill::ids && input.fill != Fill::mask &&
                  reference::Array::count(input.shape) > 0;
         });
}

// A row of an op made for these tests: y = x·factor, whose rule multiplies by `slope`.
OpRow made_up_row(double factor, double slope) {
  OpRow row;
  row.op = "made_up";
  row.name = "a test's own";
  row.inputs = {{{4}}};
  row.run = [=](const Tensors& t) {
    if (t[0].dtype() == DType::bf16 || t[0].dtype() == DType::f16) throw DTypeError("[made_up] 16 bits");
    const auto scaled = [](const Tensor& x, double by) {
      Tensor y = x.detach().clone();
      if (y.dtype() == DType::f64) std::for_each_n(y.data<double>(), y.numel(), [by](double& v) { v *= by; });
      if (y.dtype() == DType::f32) std::for_each_n(y.data<float>(), y.numel(), [by](float& v) { v *= float(by); });
      return y;
    };
    return record("made_up", scaled(t[0], factor), {t[0]},
                  [=](const Tensor& g, NeededMask) -> Gradients { return {scaled(g, slope)}; });
  };
  row.reference = [](const Arrays& t) {
    reference::Array y = t[0];
    for (double& v : y.data) v *= 2;
    return y;
  };
  return row;
}

}  // namespace

TEST_CASE("every row of the op table passes") {
  std::set<std::string> names;
  for (const OpRow& row : all_rows()) {
    CHECK_MESSAGE(names.insert(row.op + ": " + row.name).second,
                  "two rows have the name " << row.op << ": " << row.name);
    const std::string wrong = check_row(row);
    CHECK_MESSAGE(wrong.empty(), wrong);
  }
}

TEST_CASE("under a PrecisionGuard every row stays near f32, and only what multiplies matrices gives bf16") {
  if (!precision_obstacle(Precision::bf16).empty()) return skip("no bf16 units: this CPU, or no oneDNN in this build");
  std::set<std::string> seen;
  for (const OpRow& row : all_rows()) {
    seen.insert(row.op);
    const std::string wrong = check_precision(row, Precision::bf16);
    CHECK_MESSAGE(wrong.empty(), wrong);
  }
  for (const std::string& op : multiplying_ops()) CHECK_MESSAGE(seen.count(op), "no row for " << op);
}

TEST_CASE("every public op has rows, among them empty, single and 7-row inputs somewhere") {
  std::map<std::string, int> rows;
  bool empty = false, single = false, seven = false;
  for (const OpRow& row : all_rows()) {
    ++rows[row.op];
    for (const OpInput& input : row.inputs) {
      const std::size_t count = reference::Array::count(input.shape);
      empty |= count == 0;
      single |= count == 1;
      seven |= !input.shape.empty() && input.shape[0] == 7;
    }
  }
  CHECK((empty && single && seven));
  const std::set<std::string> declared = declared_ops();
  REQUIRE(declared.size() > 50);
  for (const std::string& name : declared) {
    CHECK_MESSAGE((rows.count(name) || kElsewhere.count(name)), "no row for " << name);
  }
  for (const auto& [name, count] : rows) CHECK_MESSAGE(declared.count(name), name << " has rows but is not declared");
  for (const auto& [name, file] : kElsewhere) {
    CHECK_MESSAGE(declared.count(name), name << " is excused but not declared");
    CHECK_MESSAGE(read_file(source_dir() + "/" + file).find(name) != std::string::npos,
                  name << " is excused, but " << file << " doesn't test it");
  }
}

TEST_CASE("an op without a gradient check refuses, or says that it has no gradient") {
  std::set<std::string> checked;
  for (const OpRow& row : all_rows()) {
    if (proves_gradient(row)) checked.insert(row.op);
  }
  std::string sources;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/ops")) {
    if (entry.path().extension() == ".cpp") sources += read_file(entry.path());
  }
  std::set<std::string> seen;
  for (const OpRow& row : all_rows()) {
    if (checked.count(row.op) || !seen.insert(row.op).second) continue;
    Tensors inputs;
    for (const OpInput& input : row.inputs) {
      inputs.push_back(input.fill == Fill::ids || input.fill == Fill::mask
                           ? Tensor::empty(Shape(input.shape), {.dtype = DType::i64}).fill_(0)
                           : Tensor::empty(Shape(input.shape), {.dtype = DType::f64}).fill_(1));
      if (inputs.back().dtype() == DType::f64) inputs.back().set_requires_grad(true);
    }
    bool stated = sources.find("non_differentiable(\"" + row.op + "\"") != std::string::npos;
    try {
      const Tensor y = row.run(inputs);
      stated |= y.dtype() != DType::f32 && y.dtype() != DType::f64;
    } catch (const GradError&) {
      stated = true;
    }
    CHECK_MESSAGE(stated, row.op << " takes an input that needs a gradient, has no gradient check and no mark");
  }
}

TEST_CASE("mutation: a value or a gradient that is off by a thousandth fails the rows of its op") {
  std::map<std::string, int> values, gradients;
  for (const OpRow& row : all_rows()) {
    values[row.op];
    const reference::Array expected = reference_value(row);
    if (any_nonzero(expected)) {
      // The value of an integer or bool op is set to zero instead: a thousandth rounds away.
      const bool whole = std::all_of(expected.data.begin(), expected.data.end(),
                                     [](double v) { return v == static_cast<double>(static_cast<long>(v)); });
      const MutationGuard guard(row.op, MutationTarget::value, whole ? 0 : 1.001);
      const std::string wrong = check_value(row);
      CHECK_MESSAGE(guard.applied() > 0, row.op << " (" << row.name << ") doesn't run an op of that name");
      CHECK_MESSAGE(!wrong.empty(), row.op << " (" << row.name << "): the row passes with a wrong value");
      ++values[row.op];
    }
    if (proves_gradient(row)) {
      const MutationGuard guard(row.op, MutationTarget::gradient);
      const std::string wrong = check_gradient(row);
      CHECK_MESSAGE(guard.applied() > 0, row.op << " (" << row.name << ") doesn't run an op of that name");
      CHECK_MESSAGE(!wrong.empty(), row.op << " (" << row.name << "): the row passes with a wrong gradient");
      ++gradients[row.op];
    }
  }
  for (const auto& [op, count] : values) CHECK_MESSAGE(count > 0, op << " has no row whose value isn't zero");
  for (const auto& [op, count] : gradients) CHECK_MESSAGE(count > 0, op << " has no row with a gradient");
}

TEST_CASE("an undefined argument is named by the op, or was optional") {
  for (const OpRow& row : all_rows()) {
    for (std::size_t i = 0; i < row.inputs.size(); ++i) {
      const std::string wrong = check_undefined(row, i);
      CHECK_MESSAGE(wrong.empty(), wrong);
    }
  }
}

TEST_CASE("the checker itself: what a wrong row looks like") {
  CHECK(check_row(made_up_row(2, 2)) == "");
  CHECK(check_row(made_up_row(2.001, 2)).find("f64 value, contiguous inputs: element 0: expected") !=
        std::string::npos);
  CHECK(check_row(made_up_row(2, 2.001)).find("gradient, contiguous inputs") != std::string::npos);

  // A gradient of zeros proves nothing, even where the rule is right.
  OpRow flat = made_up_row(0, 0);
  flat.reference = [](const Arrays& t) { return reference::Array(t[0].shape, 0); };
  CHECK(check_row(flat).find("gradient, contiguous inputs") != std::string::npos);
  flat.zero_gradient = true;
  CHECK(check_row(flat) == "");

  // A call that takes 16-bit leaves, and a backward that doesn't.
  OpRow late = made_up_row(2, 2);
  late.run = [](const Tensors& t) {
    Tensor y = t[0].detach().clone().to(DType::f64);
    std::for_each_n(y.data<double>(), y.numel(), [](double& v) { v *= 2; });
    return record("made_up", y.to(t[0].dtype()), {t[0]}, [](const Tensor& g, NeededMask) -> Gradients {
      Tensor twice = g.clone();
      if (twice.dtype() == DType::f64) std::for_each_n(twice.data<double>(), g.numel(), [](double& v) { v *= 2; });
      if (twice.dtype() == DType::f32) std::for_each_n(twice.data<float>(), g.numel(), [](float& v) { v *= 2; });
      return {twice};
    });
  };
  CHECK(check_row(late).find("bf16, contiguous inputs: differentiable input 0") != std::string::npos);

  // An element that is never written is NaN.
  OpRow hole = made_up_row(2, 2);
  hole.gradient = false;
  hole.run = [](const Tensors& t) {
    Tensor y = Tensor::empty(t[0].shape(), t[0].options());
    const Tensor x = t[0].detach().to(DType::f64);
    for (int i = 0; i < 3 && y.dtype() == DType::f64; ++i) y.data<double>()[i] = 2 * x.to_vector<double>()[i];
    return y;
  };
  CHECK(check_row(hole).find("element 3") != std::string::npos);

  OpRow shape = made_up_row(2, 2);
  shape.reference = [](const Arrays&) { return reference::Array({4, 1}); };
  CHECK(check_row(shape).find("shape: expected (4, 1), got (4)") != std::string::npos);

  OpRow throwing = made_up_row(2, 2);
  throwing.run = [](const Tensors&) -> Tensor { throw ValueError("[made_up] no"); };
  CHECK(check_row(throwing).find("it threw: [made_up] no") != std::string::npos);
}

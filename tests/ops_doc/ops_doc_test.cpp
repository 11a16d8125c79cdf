// docs/ops.md says what the op table says: which ops there are, and which dtypes, gradients and devices each has. A
// difference prints the right text, to be pasted between the two marks in that file.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "engine/error.h"
#include "tests/op_cases/op_case.h"
#include "tests/support/paths.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

constexpr const char* kBegin = "<!-- the op table -->\n";
constexpr const char* kEnd = "<!-- its end -->\n";

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool is_floating(const OpInput& input) { return input.fill != Fill::ids && input.fill != Fill::mask; }

// Ones of `dtype` in place of the row's floating inputs, or of its ids where it has none of those.
Tensors inputs_of(const OpRow& row, DType dtype, bool requires_grad) {
  const bool any_floating = std::any_of(row.inputs.begin(), row.inputs.end(), is_floating);
  Tensors inputs;
  for (const OpInput& input : row.inputs) {
    const Tensor zeros = Tensor::empty(Shape(input.shape), {.dtype = DType::f64}).fill_(0);
    if (is_floating(input)) {
      inputs.push_back(Tensor::empty(Shape(input.shape), {.dtype = DType::f64}).fill_(1).to(dtype));
      if (requires_grad && input.differentiable) inputs.back().set_requires_grad(true);
    } else if (input.fill == Fill::ids) {
      inputs.push_back(zeros.to(any_floating ? DType::i64 : dtype));
    } else {
      inputs.push_back(zeros.to(DType::boolean));
    }
  }
  return inputs;
}

bool runs(const OpRow& row, DType dtype) {
  for (const OpInput& input : row.inputs) {
    if (reference::Array::count(input.shape) == 0) return false;  // without elements nothing is shown
  }
  try {
    row.run(inputs_of(row, dtype, false));
    return true;
  } catch (const Error&) {
    return false;
  }
}

bool has_gradient(const OpRow& row) {
  try {
    return row.run(inputs_of(row, DType::f64, true)).requires_grad();
  } catch (const GradError&) {  // it says that it has none
    return false;
  }
}

// What the rows of one op show.
struct Facts {
  std::set<DType> dtypes;
  bool has_gradient = false, gradient_checked = false;

  void add(const OpRow& row) {
    for (const DType dtype :
         {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8, DType::boolean}) {
      if (dtypes.count(dtype) == 0 && runs(row, dtype)) dtypes.insert(dtype);
    }
    has_gradient = has_gradient || (row.gradient && ::has_gradient(row));
    gradient_checked = gradient_checked || (row.gradient && !row.zero_gradient);
  }
};

// The ops that each family's header declares, in its order: functions at the start of a line that compute tensors.
std::vector<std::string> declared_in(const std::filesystem::path& header) {
  const std::regex declaration(
      R"((?:^|\n)(?:Tensor|void|double|AttentionNorms|std::pair<[^\n]*?>|std::vector<Tensor>) (\w+)\()");
  const std::string text = text_of(header);
  std::vector<std::string> names;
  for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it) {
    const std::string name = (*it)[1];
    const bool known = std::find(names.begin(), names.end(), name) != names.end();
    if (!known && name != "operator" && name.rfind("check_", 0) != 0) names.push_back(name);
  }
  return names;
}

const char* const kFamilies[] = {"unary", "binary", "reduce", "matmul", "softmax", "norm", "attention", "pre_norm",
                                 "view",  "copy",   "index",  "patch",  "dropout", "loss", "optim_step"};

std::string expected_table() {
  std::map<std::string, Facts> facts;
  for (const OpRow& row : all_rows()) facts[row.op].add(row);
  std::string table =
      "| op | family | CPU forward | CPU backward | gradient checked | CUDA | dtypes |\n"
      "|---|---|---|---|---|---|---|\n";
  std::string outside;
  for (const std::string family : kFamilies) {
    const bool cuda = std::filesystem::exists(source_dir() + "/ops/cuda/" + family + ".cu");
    for (const std::string& op : declared_in(source_dir() + "/ops/" + family + ".h")) {
      const auto found = facts.find(op);
      if (found == facts.end()) {
        outside += (outside.empty() ? "`" : ", `") + op + "`";
        continue;
      }
      const Facts& fact = found->second;
      std::string dtypes;
      for (const DType dtype : fact.dtypes) dtypes += (dtypes.empty() ? "" : " ") + std::string(to_string(dtype));
      table += "| `" + op + "` | " + family + " | yes | " + (fact.has_gradient ? "yes" : "none") + " | " +
               (fact.has_gradient ? fact.gradient_checked ? "yes" : "no" : "") + " | " + (cuda ? "yes" : "no") + " | " +
               dtypes + " |\n";
    }
  }
  return table + "\nWithout rows, because they write in place or return plain numbers: " + outside + ".\n";
}

}  // namespace

TEST_CASE("every family that has kernels is in the table") {
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/ops/kernels")) {
    const std::string family = entry.path().stem();
    if (!std::filesystem::exists(source_dir() + "/ops/" + family + ".h")) continue;  // shared by families
    CHECK_MESSAGE(std::find(std::begin(kFamilies), std::end(kFamilies), family) != std::end(kFamilies),
                  family << " is missing in kFamilies");
  }
}

TEST_CASE("docs/ops.md has the table that the rows of the op table give") {
  const std::string document = text_of(source_dir() + "/docs/ops.md"), expected = expected_table();
  const std::size_t begin = document.find(kBegin), end = document.find(kEnd);
  REQUIRE(begin != std::string::npos);
  REQUIRE(end != std::string::npos);
  const std::size_t first = begin + std::string(kBegin).size();
  const bool same = document.substr(first, end - first) == "\n" + expected + "\n";
  CHECK_MESSAGE(same, "docs/ops.md is out of date; between its two marks belongs:\n\n" << expected);
}

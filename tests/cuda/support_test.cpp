// docs/op_support.md: what each operation can on each device, found by asking. The page is compared with the library;
// POLYGRAD_WRITE_DOCS=1 writes it.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/cuda/gpu.h"
#include "tests/op_cases/op_case.h"
#include "tests/support/paths.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

struct Support {
  const OpRow* row = nullptr;  // with a gradient, and elements, where the op has such a row
  bool gradient = false;
};

bool has_elements(const OpRow& row) {
  for (const OpInput& input : row.inputs) {
    if (reference::Array::count(input.shape) == 0) return false;
  }
  return true;
}

// "f32, f64", or "-".
std::string dtypes(const OpRow& row, Device device, bool gradient) {
  std::string text;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    if (supports(row, device, dtype, gradient)) text += (text.empty() ? "" : ", ") + std::string(to_string(dtype));
  }
  return text.empty() ? "-" : text;
}

std::string page() {
  std::map<std::string, Support> ops;
  const std::vector<OpRow> rows = all_rows();
  for (const OpRow& row : rows) {
    Support& op = ops[row.op];
    const bool proves = row.gradient && !row.zero_gradient && has_elements(row);
    if (op.row == nullptr || (proves && !op.gradient) || (!has_elements(*op.row) && has_elements(row))) op.row = &row;
    op.gradient = op.gradient || proves;
  }
  std::ostringstream text;
  text << R"(# What runs where

Written by `tests/cuda/support_test.cpp`, which asks every operation of the op table and fails where this page says
something else; `POLYGRAD_WRITE_DOCS=1 ctest --test-dir build -R support_test` writes it. Outside a `PrecisionGuard`. A
gradient that is there is compared with central differences on the CPU, and on a GPU with the CPU's.

| operation | CPU | gradient | CUDA | gradient |
|---|---|---|---|---|
)";
  for (const auto& [name, op] : ops) {
    text << "| `" << name << "` |";
    for (const Device device : {Device::cpu(), gpu()}) {
      text << ' ' << dtypes(*op.row, device, false) << " | " << (op.gradient ? dtypes(*op.row, device, true) : "none")
           << " |";
    }
    text << '\n';
  }
  return text.str();
}

}  // namespace

TEST_CASE("docs/op_support.md says what the library does") {
  POLYGRAD_NEEDS_GPU();
  const std::string path = source_dir() + "/docs/op_support.md", expected = page();
  if (std::getenv("POLYGRAD_WRITE_DOCS") != nullptr) std::ofstream(path) << expected;
  std::ostringstream got;
  got << std::ifstream(path).rdbuf();
  CHECK(got.str() == expected);
}

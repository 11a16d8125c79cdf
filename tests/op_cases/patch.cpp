// Rows of the patch family.
#include "ops/patch.h"

#include "tests/op_cases/op_case.h"
#include "tests/reference/patch.h"

namespace polygrad::testing {
namespace {

OpRow patch_row(const std::string& name, const std::vector<std::int64_t>& shape, std::int64_t patch_h,
                std::int64_t patch_w) {
  OpRow row;
  row.op = "patch_unfold";
  row.name = name;
  row.inputs = {{shape}};
  row.run = [=](const Tensors& t) { return patch_unfold(t[0], patch_h, patch_w); };
  row.reference = [=](const Arrays& a) { return reference::patch_unfold(a[0], patch_h, patch_w); };
  row.zero_gradient = reference::Array::count(shape) == 0;
  return row;
}

}  // namespace

std::vector<OpRow> patch_rows() {
  return {
      patch_row("square", {2, 3, 4, 4}, 2, 2),
      patch_row("rectangular image", {1, 2, 4, 6}, 2, 2),
      patch_row("rectangular patch", {7, 1, 4, 6}, 4, 3),
      patch_row("one patch", {2, 2, 3, 5}, 3, 5),
      patch_row("patches of one pixel", {1, 3, 2, 3}, 1, 1),
      patch_row("rows as patches", {1, 2, 3, 4}, 1, 4),
      patch_row("patches of 7 columns", {1, 2, 2, 14}, 2, 7),
      patch_row("patches of 8 columns", {2, 1, 2, 16}, 1, 8),
      patch_row("patches of 16 columns", {1, 2, 2, 32}, 2, 16),
      patch_row("one pixel", {1, 1, 1, 1}, 1, 1),
      patch_row("no images", {0, 3, 4, 4}, 2, 2),
      patch_row("no channels", {2, 0, 4, 4}, 2, 2),
      patch_row("no rows", {2, 1, 0, 4}, 2, 2),
  };
}

}  // namespace polygrad::testing

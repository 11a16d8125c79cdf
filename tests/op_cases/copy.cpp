// Rows of the copy family.
#include "ops/copy.h"

#include "tests/op_cases/op_case.h"
#include "tests/reference/copy.h"
#include "tests/reference/view.h"

namespace polygrad::testing {
namespace {

using Sizes = std::vector<std::int64_t>;
using Amounts = std::vector<std::pair<std::int64_t, std::int64_t>>;

OpRow cat_row(const std::string& name, const std::vector<Sizes>& shapes, int dim) {
  OpRow row;
  row.op = "cat";
  row.name = name;
  std::size_t elements = 0;
  for (const Sizes& shape : shapes) {
    row.inputs.push_back({shape});
    elements += reference::Array::count(shape);
  }
  row.run = [dim](const Tensors& t) { return cat(t, dim); };
  row.reference = [dim, rank = shapes[0].size()](const Arrays& a) {
    return reference::cat(a, dim < 0 ? dim + static_cast<int>(rank) : dim);
  };
  row.zero_gradient = elements == 0;
  return row;
}

OpRow stack_row(const std::string& name, const Sizes& shape, std::size_t count, int dim) {
  OpRow row;
  row.op = "stack";
  row.name = name;
  row.inputs.assign(count, {shape});
  row.run = [dim](const Tensors& t) { return stack(t, dim); };
  row.reference = [dim](const Arrays& a) { return reference::stack(a, dim); };
  row.zero_gradient = reference::Array::count(shape) == 0;
  return row;
}

// Piece `piece` of the split.
OpRow split_row(const std::string& name, const Sizes& shape, std::int64_t size, int dim, std::int64_t piece) {
  OpRow row;
  row.op = "split";
  row.name = name;
  row.inputs = {{shape}};
  row.run = [=](const Tensors& t) { return split(t[0], size, dim)[static_cast<std::size_t>(piece)]; };
  row.reference = [=](const Arrays& a) {
    const std::int64_t total = shape[static_cast<std::size_t>(dim)];
    return reference::slice(a[0], dim, piece * size, std::min(total, (piece + 1) * size), 1);
  };
  row.zero_gradient = reference::Array::count(shape) == 0;
  return row;
}

OpRow pad_row(const std::string& name, const Sizes& shape, const Amounts& amounts, double value) {
  OpRow row;
  row.op = "pad";
  row.name = name;
  row.inputs = {{shape}};
  row.run = [=](const Tensors& t) { return pad(t[0], amounts, value); };
  row.reference = [=](const Arrays& a) { return reference::pad(a[0], amounts, value); };
  row.zero_gradient = reference::Array::count(shape) == 0;
  return row;
}

OpRow roll_row(const std::string& name, const Sizes& shape, const std::vector<std::int64_t>& shifts,
               const std::vector<int>& dims) {
  OpRow row;
  row.op = "roll";
  row.name = name;
  row.inputs = {{shape}};
  row.run = [=](const Tensors& t) { return roll(t[0], shifts, dims); };
  row.reference = [=](const Arrays& a) { return reference::roll(a[0], shifts, dims); };
  row.zero_gradient = reference::Array::count(shape) == 0;
  return row;
}

}  // namespace

std::vector<OpRow> copy_rows() {
  return {
      cat_row("rows", {{2, 3}, {7, 3}}, 0),
      cat_row("columns", {{2, 3}, {2, 1}, {2, 4}}, 1),
      cat_row("a class token before patches", {{2, 1, 3}, {2, 4, 3}}, 1),
      cat_row("the last of three", {{2, 3, 2}, {2, 3, 1}}, -1),
      cat_row("one tensor", {{1, 4}}, 0),
      cat_row("an empty one among them", {{2, 3}, {0, 3}, {1, 3}}, 0),
      cat_row("nothing", {{0, 3}, {0, 3}}, 0),
      cat_row("more than a node can hold", std::vector<Sizes>(70, {1, 2}), 0),
      stack_row("in front", {2, 3}, 3, 0),
      stack_row("behind", {7, 2}, 2, 2),
      stack_row("scalars", {}, 4, 0),
      stack_row("one", {1}, 1, 1),
      stack_row("empty", {0, 2}, 2, 1),
      split_row("the first piece", {7, 3}, 3, 0, 0),
      split_row("the short last piece", {7, 3}, 3, 0, 2),
      split_row("columns", {2, 6}, 2, 1, 1),
      split_row("all in one", {1, 3}, 5, 1, 0),
      split_row("empty", {0, 3}, 2, 0, 0),
      pad_row("both sides", {2, 7}, {{1, 2}, {0, 3}}, 0),
      pad_row("with a value", {3, 2}, {{0, 1}, {1, 0}}, -1.5),
      pad_row("images", {1, 2, 3, 3}, {{0, 0}, {0, 0}, {2, 2}, {2, 2}}, 0),
      pad_row("nothing added", {2, 3}, {{0, 0}, {0, 0}}, 7),
      pad_row("a scalar", {}, {}, 1),
      pad_row("around nothing", {0, 2}, {{1, 1}, {0, 0}}, 2),
      roll_row("one dimension", {7}, {2}, {0}),
      roll_row("backwards", {2, 7}, {-3}, {1}),
      roll_row("two dimensions, as Swin's shift", {2, 4, 5, 3}, {-2, -1}, {1, 2}),
      roll_row("further than its size", {5, 2}, {13, -4}, {0, 1}),
      roll_row("three dimensions", {3, 4, 2}, {1, 2, 1}, {0, 1, 2}),
      roll_row("no shift", {2, 3}, {0}, {1}),
      roll_row("sizes of 1", {1, 1}, {1, -1}, {0, 1}),
      roll_row("empty", {0, 3}, {1, 1}, {0, 1}),
  };
}

}  // namespace polygrad::testing

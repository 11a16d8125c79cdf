// Rows of the binary family: every map in every way that two shapes can meet.
#include "ops/binary.h"

#include "tests/op_cases/op_case.h"
#include "tests/reference/binary.h"

namespace polygrad::testing {
namespace {

using Sizes = std::vector<std::int64_t>;
using Function = Tensor (*)(const Tensor&, const Tensor&);

OpRow row_of(const std::string& op, Function function, const std::string& name, const OpInput& a, const OpInput& b) {
  OpRow row;
  row.op = op;
  row.name = name;
  row.inputs = {a, b};
  row.run = [function](const Tensors& t) { return function(t[0], t[1]); };
  row.reference = [op](const Arrays& t) { return reference::binary(op, t[0], t[1]); };
  // Nothing has no gradient; of two single elements maximum and minimum give one none.
  const std::size_t count_a = reference::Array::count(a.shape), count_b = reference::Array::count(b.shape);
  row.zero_gradient = count_a * count_b == 0 || (count_a * count_b == 1 && a.fill == Fill::distinct);
  return row;
}

// With a number in the place of b, or of a.
OpRow number_row(const std::string& op, const std::string& name, const OpInput& x, double number, bool number_first,
                 std::function<Tensor(const Tensor&)> run) {
  OpRow row;
  row.op = op;
  row.name = name;
  row.inputs = {x};
  row.run = [run](const Tensors& t) { return run(t[0]); };
  row.reference = [op, number, number_first](const Arrays& t) {
    const reference::Array scalar({}, number);
    return number_first ? reference::binary(op, scalar, t[0]) : reference::binary(op, t[0], scalar);
  };
  return row;
}

void add_arithmetic(std::vector<OpRow>& rows, const std::string& op, Function function, Fill fill) {
  const auto add = [&](const std::string& name, const Sizes& a, const Sizes& b) {
    rows.push_back(row_of(op, function, name, {a, fill}, {b, fill}));
  };
  add("scalars", {}, {});
  add("nothing", {0, 4}, {0, 4});
  add("nothing, broadcast", {3, 0}, {1});
  add("one element", {1, 1}, {1});
  add("7 rows", {7, 5}, {7, 5});
  add("a row on each of 7", {7, 5}, {5});
  add("7 rows under a row", {5}, {7, 5});
  add("a column on each of 3", {7, 3}, {7, 1});
  add("a row and a column", {1, 6}, {4, 1});
  add("a scalar on a matrix", {3, 4}, {});
  add("a middle dimension", {2, 3, 4}, {2, 1, 4});
  add("outer dimensions", {2, 1, 3, 1}, {3, 1, 5});
}

void add_comparison(std::vector<OpRow>& rows, const std::string& op, Function function) {
  const auto add = [&](const std::string& name, const OpInput& a, const OpInput& b) {
    OpRow row = row_of(op, function, name, a, b);
    row.gradient = false;
    rows.push_back(row);
  };
  add("7 rows", {{7, 5}}, {{7, 5}});
  add("integers with equals", {{40}, Fill::ids, 3}, {{40}, Fill::ids, 3});
  add("bool", {{4, 9}, Fill::mask}, {{9}, Fill::mask});
  add("a row and a column", {{1, 6}, Fill::ids, 2}, {{5, 1}, Fill::ids, 2});
  add("nothing", {{0}}, {{0}});
}

}  // namespace

std::vector<OpRow> binary_rows() {
  std::vector<OpRow> rows;
  add_arithmetic(rows, "add", add, Fill::normal);
  add_arithmetic(rows, "sub", sub, Fill::normal);
  add_arithmetic(rows, "mul", mul, Fill::normal);
  add_arithmetic(rows, "div", div, Fill::positive);
  add_arithmetic(rows, "maximum", maximum, Fill::distinct);
  add_arithmetic(rows, "minimum", minimum, Fill::distinct);

  const OpInput x{{7, 3}, Fill::positive};
  rows.push_back(number_row("add", "a number", x, 0.75, false, [](const Tensor& t) { return t + 0.75; }));
  rows.push_back(number_row("add", "a number first", x, 0.75, true, [](const Tensor& t) { return 0.75 + t; }));
  rows.push_back(number_row("sub", "a number", x, 0.75, false, [](const Tensor& t) { return t - 0.75; }));
  rows.push_back(number_row("sub", "a number first", x, 0.75, true, [](const Tensor& t) { return 0.75 - t; }));
  rows.push_back(number_row("mul", "a number", x, 0.75, false, [](const Tensor& t) { return t * 0.75; }));
  rows.push_back(number_row("mul", "a number first", x, 0.75, true, [](const Tensor& t) { return 0.75 * t; }));
  rows.push_back(number_row("div", "a number", x, 0.75, false, [](const Tensor& t) { return t / 0.75; }));
  rows.push_back(number_row("div", "a number first", x, 0.75, true, [](const Tensor& t) { return 0.75 / t; }));
  rows.push_back(number_row("maximum", "a number", x, 1.3, false, [](const Tensor& t) { return maximum(t, 1.3); }));
  rows.push_back(number_row("minimum", "a number", x, 1.3, false, [](const Tensor& t) { return minimum(t, 1.3); }));

  add_comparison(rows, "eq", eq);
  add_comparison(rows, "ne", ne);
  add_comparison(rows, "lt", lt);
  add_comparison(rows, "le", le);
  add_comparison(rows, "gt", gt);
  add_comparison(rows, "ge", ge);
  OpRow number = number_row("ge", "a number", {{30}, Fill::ids, 5}, 3, false, [](const Tensor& t) { return ge(t, 3); });
  number.gradient = false;
  rows.push_back(number);
  return rows;
}

}  // namespace polygrad::testing

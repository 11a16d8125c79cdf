// Rows of the dropout family. The twins draw with their own Philox.
#include "ops/dropout.h"

#include "tests/op_cases/op_case.h"
#include "tests/reference/dropout.h"

namespace polygrad::testing {
namespace {

using Sizes = std::vector<std::int64_t>;
using reference::Array;
using reference::Stream;

Generator generator_of(const Stream& stream) { return Generator(stream.seed, stream.offset, stream.first_sample); }

OpRow dropout_row(const std::string& name, const Sizes& shape, double p, const Stream& stream) {
  OpRow row;
  row.op = "dropout";
  row.name = name;
  row.inputs = {{shape}};
  row.run = [=](const Tensors& t) {
    Generator generator = generator_of(stream);
    return dropout(t[0], p, generator);
  };
  row.reference = [=](const Arrays& a) { return reference::dropout(a[0], p, stream); };
  row.zero_gradient = Array::count(shape) == 0;
  return row;
}

OpRow drop_path_row(const std::string& name, const Sizes& shape, double p, const Stream& stream) {
  OpRow row = dropout_row(name, shape, p, stream);
  row.op = "drop_path";
  row.run = [=](const Tensors& t) {
    Generator generator = generator_of(stream);
    return drop_path(t[0], p, generator);
  };
  row.reference = [=](const Arrays& a) { return reference::drop_path(a[0], p, stream); };
  return row;
}

OpRow residual_add_row(const std::string& name, const Sizes& shape, double p, const Stream& stream) {
  OpRow row = dropout_row(name, shape, p, stream);
  row.op = "residual_add";
  row.inputs = {{shape}, {shape}};
  row.run = [=](const Tensors& t) {
    Generator generator = generator_of(stream);
    return residual_add(t[0], t[1], p, p > 0 ? &generator : nullptr);
  };
  row.reference = [=](const Arrays& a) { return reference::residual_add(a[0], a[1], p, stream); };
  return row;
}

}  // namespace

std::vector<OpRow> dropout_rows() {
  const Stream large{.seed = 0xfedcba9876543210u, .offset = 0x1'0000'0007u, .first_sample = 0x1'0000'0003};
  return {
      dropout_row("a matrix", {7, 5}, 0.3, {.seed = 1}),
      dropout_row("three dimensions", {2, 3, 7}, 0.5, {.seed = 2, .offset = 9}),
      dropout_row("a later sample", {3, 6}, 0.5, {.seed = 2, .offset = 9, .first_sample = 5}),
      dropout_row("numbers beyond 32 bits", {4, 9}, 0.4, large),
      dropout_row("samples longer than a block", {2, 300}, 0.2, {.seed = 3}),
      dropout_row("one element", {1}, 0.1, {.seed = 5}),
      dropout_row("a scalar", {}, 0.1, {.seed = 5}),
      dropout_row("empty", {0, 3}, 0.5, {.seed = 1}),
      dropout_row("samples of nothing", {3, 0}, 0.5, {.seed = 1}),
      drop_path_row("a matrix", {7, 5}, 0.3, {.seed = 1}),
      drop_path_row("tokens", {8, 3, 4}, 0.5, {.seed = 4, .offset = 2, .first_sample = 3}),
      drop_path_row("numbers beyond 32 bits", {6, 2}, 0.4, large),
      drop_path_row("one sample", {1, 4}, 0.1, {.seed = 5}),
      drop_path_row("empty", {0, 3}, 0.5, {.seed = 1}),
      residual_add_row("no drop path", {7, 5}, 0, {}),
      residual_add_row("drop path", {7, 3, 2}, 0.4, {.seed = 6}),
      residual_add_row("numbers beyond 32 bits", {6, 2}, 0.4, large),
      residual_add_row("a scalar", {}, 0.1, {.seed = 5}),
      residual_add_row("one sample", {1, 1}, 0.1, {.seed = 5}),
      residual_add_row("empty", {0, 3}, 0.5, {.seed = 1}),
  };
}

}  // namespace polygrad::testing

// Rows of the loss family.
#include "ops/loss.h"

#include "tests/op_cases/op_case.h"
#include "tests/reference/loss.h"

namespace polygrad::testing {
namespace {

using Sizes = std::vector<std::int64_t>;
using reference::Array;
using reference::Reduce;

Reduction reduction_of(Reduce reduce) {
  return reduce == Reduce::none ? Reduction::none : reduce == Reduce::mean ? Reduction::mean : Reduction::sum;
}

// What a row asks for. Class weights are the third input, where there are any.
struct Case {
  double smoothing = 0;
  std::int64_t ignored = -100;
  Reduce reduce = Reduce::mean;
  bool weights = false;
  bool all_ignored = false;
};

OpRow loss_row(const std::string& op, const std::string& name, const Sizes& logits, const OpInput& target,
               const Case& c) {
  OpRow row;
  row.op = op;
  row.name = name;
  row.inputs = {{logits}, target};
  if (c.weights) row.inputs.push_back({.shape = {logits[1]}, .fill = Fill::positive, .differentiable = false});
  const bool soft = op == "cross_entropy_soft";
  row.run = [=](const Tensors& t) {
    const CrossEntropyOptions options{.label_smoothing = c.smoothing,
                                      .ignore_index = c.ignored,
                                      .reduction = reduction_of(c.reduce),
                                      .class_weight = c.weights ? t[2] : Tensor()};
    return soft ? cross_entropy_soft(t[0], t[1], options) : cross_entropy(t[0], t[1], options);
  };
  row.reference = [=](const Arrays& a) {
    const reference::LossOptions options{.smoothing = c.smoothing,
                                         .ignored = c.ignored,
                                         .reduce = c.reduce,
                                         .class_weight = c.weights ? a[2] : Array(Sizes{0})};
    return soft ? reference::cross_entropy_soft(a[0], a[1], options) : reference::cross_entropy(a[0], a[1], options);
  };
  row.zero_gradient = Array::count(logits) == 0 || c.all_ignored || logits[1] == 1;
  return row;
}

OpRow class_row(const std::string& name, const Sizes& logits, const Case& c) {
  Sizes target = logits;
  target.erase(target.begin() + 1);
  return loss_row("cross_entropy", name, logits, {.shape = target, .fill = Fill::ids, .bound = logits[1]}, c);
}

OpRow soft_row(const std::string& name, const Sizes& logits, const Case& c) {
  return loss_row("cross_entropy_soft", name, logits, {.shape = logits, .fill = Fill::unit, .differentiable = false},
                  c);
}

OpRow mse_row(const std::string& name, const Sizes& shape, Reduce reduce) {
  OpRow row;
  row.op = "mse_loss";
  row.name = name;
  row.inputs = {{shape}, {shape}};
  row.run = [reduce](const Tensors& t) { return mse_loss(t[0], t[1], reduction_of(reduce)); };
  row.reference = [reduce](const Arrays& a) { return reference::mse_loss(a[0], a[1], reduce); };
  row.zero_gradient = Array::count(shape) == 0;
  return row;
}

}  // namespace

std::vector<OpRow> loss_rows() {
  return {
      class_row("mean", {7, 5}, {}),
      class_row("sum", {7, 5}, {.reduce = Reduce::sum}),
      class_row("none", {7, 5}, {.reduce = Reduce::none}),
      class_row("more classes than lanes", {3, 37}, {}),
      class_row("label smoothing", {6, 4}, {.smoothing = 0.1}),
      class_row("smoothing alone", {6, 4}, {.smoothing = 1}),
      class_row("some ignored", {9, 3}, {.ignored = 1}),
      class_row("class weights", {8, 4}, {.weights = true}),
      class_row("class weights, smoothing, some ignored, mean", {9, 3},
                {.smoothing = 0.2, .ignored = 0, .weights = true}),
      class_row("class weights, smoothing, some ignored, none", {9, 3},
                {.smoothing = 0.2, .ignored = 0, .reduce = Reduce::none, .weights = true}),
      class_row("places", {2, 4, 7}, {.ignored = 2}),
      class_row("a map of places, none", {2, 3, 2, 5}, {.reduce = Reduce::none}),
      class_row("places, weights and smoothing", {3, 18, 2}, {.smoothing = 0.3, .weights = true}),
      class_row("all ignored", {1, 1}, {.ignored = 0, .all_ignored = true}),
      class_row("one class", {3, 1}, {}),
      class_row("one sample", {1, 2}, {}),
      class_row("no samples", {0, 3}, {}),
      class_row("no samples, none", {0, 3}, {.reduce = Reduce::none}),
      class_row("no places", {2, 3, 0}, {}),
      soft_row("mean", {7, 5}, {}),
      soft_row("sum, label smoothing", {4, 3}, {.smoothing = 0.1, .reduce = Reduce::sum}),
      soft_row("none, class weights", {4, 20}, {.reduce = Reduce::none, .weights = true}),
      soft_row("places", {2, 3, 7}, {.smoothing = 0.2, .weights = true}),
      soft_row("one class", {2, 1}, {}),
      soft_row("no samples", {0, 3}, {}),
      mse_row("mean", {7, 3}, Reduce::mean),
      mse_row("sum", {2, 3, 4}, Reduce::sum),
      mse_row("none", {3, 5}, Reduce::none),
      mse_row("longer than the lanes", {37}, Reduce::mean),
      mse_row("a scalar", {}, Reduce::mean),
      mse_row("empty", {0, 3}, Reduce::mean),
  };
}

}  // namespace polygrad::testing

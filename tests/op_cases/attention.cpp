// Rows of the attention family: every activation in both ops, and each mask and path once; the grid of sizes is in
// tests/ops/attention_test.cpp.
#include "ops/attention.h"

#include "tests/op_cases/op_case.h"
#include "tests/reference/attention.h"

namespace polygrad::testing {
namespace {

using Sizes = std::vector<std::int64_t>;

// What a row passes beside q, k and v: those marked become further inputs, in this order.
struct Extras {
  std::int64_t bias_groups = 0;  // of a bias (G, H, Nq, Nk)
  bool key_mask = false, query_mask = false;
  std::int64_t region_groups = 0;  // of regions (G, N), made of i64 ids
  double dropout = 0;
  double divisor = 3;
  AttentionPath path = AttentionPath::automatic;
};

AttentionParams params_of(Activation phi, const Extras& extras, Generator& generator) {
  AttentionParams params;
  params.phi = phi;
  params.divisor = extras.divisor;
  params.dropout = extras.dropout;
  params.generator = &generator;
  params.path = extras.path;
  return params;
}

Generator row_generator() { return Generator(77, 5, 2); }

AttentionMasks masks_of(const Tensors& t, std::size_t next, const Extras& extras) {
  AttentionMasks masks;
  if (extras.bias_groups > 0) masks.bias = t[next++];
  if (extras.key_mask) masks.key_mask = t[next++];
  if (extras.query_mask) masks.query_mask = t[next++];
  if (extras.region_groups > 0) {
    const Tensor ids = t[next++];
    if (ids.defined()) masks.regions = ids.to(DType::i32);
  }
  return masks;
}

reference::AttentionSpec spec_of(const Arrays& t, std::size_t next, Activation phi, const Extras& extras) {
  reference::AttentionSpec spec;
  spec.phi = to_string(phi);
  spec.divisor = extras.divisor;
  spec.dropout = extras.dropout;
  spec.seed = 77;
  spec.offset = 5;
  spec.first_sample = 2;
  if (extras.bias_groups > 0) spec.bias = t[next++];
  if (extras.key_mask) spec.key_mask = t[next++];
  if (extras.query_mask) spec.query_mask = t[next++];
  if (extras.region_groups > 0) spec.regions = t[next++];
  return spec;
}

void add_inputs(OpRow& row, const Extras& extras, const Sizes& q, std::int64_t keys) {
  if (extras.bias_groups > 0) row.inputs.push_back({{extras.bias_groups, q[1], q[2], keys}});
  if (extras.key_mask) row.inputs.push_back({{q[0], keys}, Fill::mask});
  if (extras.query_mask) row.inputs.push_back({{q[0], q[2]}, Fill::mask});
  if (extras.region_groups > 0) row.inputs.push_back({{extras.region_groups, keys}, Fill::ids, 3});
}

// High powers multiply the relative error of a score; an empty row has no gradient.
void set_expectations(OpRow& row, Activation phi) {
  if (phi.power() > 3) row.f32_tolerance = 1e-5;
  row.narrow_tolerance = 1e-2 * (1 + phi.power());
  row.zero_gradient = reference::Array::count(row.inputs[0].shape) == 0;
}

// q (B, H, Nq, d) and `keys` rows of k and v.
OpRow separate_row(const std::string& name, Activation phi, const Sizes& q, std::int64_t keys,
                   const Extras& extras = {}) {
  OpRow row;
  row.op = "attention";
  row.name = to_string(phi) + ", " + name;
  const Sizes k = {q[0], q[1], keys, q[3]};
  row.inputs = {{q}, {k}, {k}};
  add_inputs(row, extras, q, keys);
  row.run = [=](const Tensors& t) {
    Generator generator = row_generator();
    return attention(t[0], t[1], t[2], params_of(phi, extras, generator), masks_of(t, 3, extras));
  };
  row.reference = [=](const Arrays& t) { return reference::attention(t[0], t[1], t[2], spec_of(t, 3, phi, extras)); };
  set_expectations(row, phi);
  return row;
}

// Part `which` of (B, N, 3, H, d) as (B, H, N, d).
reference::Array unpacked(const reference::Array& qkv, std::int64_t which) {
  const std::int64_t n = qkv.shape[1], heads = qkv.shape[3], d = qkv.shape[4];
  reference::Array part({qkv.shape[0], heads, n, d});
  for (std::int64_t i = 0; i < part.numel(); ++i) {
    const std::int64_t e = i % d, token = i / d % n, h = i / d / n % heads, b = i / d / n / heads;
    part.data[static_cast<std::size_t>(i)] =
        qkv.data[static_cast<std::size_t>((((b * n + token) * 3 + which) * heads + h) * d + e)];
  }
  return part;
}

OpRow packed_row(const std::string& name, Activation phi, const Sizes& q, const Extras& extras = {}) {
  OpRow row;
  row.op = "attention_qkv";
  row.name = to_string(phi) + ", " + name;
  row.inputs = {{{q[0], q[2], 3, q[1], q[3]}}};
  add_inputs(row, extras, q, q[2]);
  row.run = [=](const Tensors& t) {
    Generator generator = row_generator();
    return attention_qkv(t[0], params_of(phi, extras, generator), masks_of(t, 1, extras));
  };
  row.reference = [=](const Arrays& t) {
    return reference::attention(unpacked(t[0], 0), unpacked(t[0], 1), unpacked(t[0], 2), spec_of(t, 1, phi, extras));
  };
  set_expectations(row, phi);
  return row;
}

OpRow map_row(const std::string& name, Activation phi, const Sizes& q, std::int64_t keys, const Extras& extras = {}) {
  OpRow row;
  row.op = "attention_map";
  row.name = to_string(phi) + ", " + name;
  row.inputs = {{q}, {{q[0], q[1], keys, q[3]}}};
  add_inputs(row, extras, q, keys);
  row.run = [=](const Tensors& t) {
    Generator generator = row_generator();
    return attention_map(t[0], t[1], params_of(phi, extras, generator), masks_of(t, 2, extras));
  };
  row.reference = [=](const Arrays& t) { return reference::attention_map(t[0], t[1], spec_of(t, 2, phi, extras)); };
  row.gradient = false;
  set_expectations(row, phi);
  return row;
}

}  // namespace

std::vector<OpRow> attention_rows() {
  const Activation softmax = Activation::softmax(), identity = Activation::power(1), cube = Activation::power(3);
  const Sizes q = {2, 2, 7, 3};
  std::vector<OpRow> rows;
  for (const Activation phi : all_activations()) {
    rows.push_back(separate_row("7 queries, 5 keys", phi, q, 5));
    rows.push_back(packed_row("7 tokens", phi, q));
    rows.push_back(map_row("7 queries, 5 keys", phi, q, 5));
  }
  for (const Activation phi : {softmax, identity, cube}) {
    const auto add = [&](const std::string& name, const Extras& extras) {
      rows.push_back(separate_row(name, phi, q, 7, extras));
      rows.push_back(packed_row(name, phi, q, extras));
    };
    add("bias of all", {.bias_groups = 1});
    add("bias by sample", {.bias_groups = 2});
    add("key mask", {.key_mask = true});
    add("query mask", {.query_mask = true});
    add("regions", {.region_groups = 1});
    add("dropout", {.dropout = 0.25});
    add("everything", {.bias_groups = 2, .key_mask = true, .query_mask = true, .region_groups = 2, .dropout = 0.25});
    add("materialised", {.bias_groups = 1, .key_mask = true, .dropout = 0.25, .path = AttentionPath::materialised});
    rows.push_back(map_row("masked", phi, q, 7, {.bias_groups = 1, .key_mask = true, .region_groups = 2}));
    rows.push_back(separate_row("class attention", phi, {2, 3, 1, 4}, 6));
    rows.push_back(separate_row("no sample", phi, {0, 2, 4, 3}, 4));
    rows.push_back(packed_row("no sample", phi, {0, 2, 4, 3}));
    rows.push_back(map_row("no query", phi, {2, 2, 0, 3}, 4));
  }
  rows.push_back(separate_row("linear by name", identity, q, 5,
                              {.key_mask = true, .query_mask = true, .path = AttentionPath::linear}));
  rows.push_back(packed_row("linear by name", identity, q, {.path = AttentionPath::linear}));
  rows.push_back(separate_row("sizes of one", cube, {1, 1, 1, 1}, 1));
  rows.push_back(packed_row("sizes of one", cube, {1, 1, 1, 1}));
  rows.push_back(packed_row("one head of 17", cube, {1, 1, 9, 17}));
  return rows;
}

}  // namespace polygrad::testing

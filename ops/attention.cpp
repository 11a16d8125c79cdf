#include "ops/attention.h"

#include <algorithm>
#include <cmath>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/format.h"
#include "engine/workspace.h"
#include "ops/check.h"
#include "ops/kernels/attention.h"
#include "ops/kernels/attention_activation.h"
#include "ops/rounded_weights.h"

namespace polygrad {
namespace {

// --- checks ---------------------------------------------------------------------------------------------------------

// B, H, Nq, Nk, d, and the tensor that errors about dtype and device compare with.
struct Dimensions {
  std::int64_t batch, heads, queries, keys, head_dim;
  bool empty() const { return batch == 0 || heads == 0 || queries == 0 || keys == 0 || head_dim == 0; }
};

// 16-bit rows are rounded by this file alone, from what an op was given under a PrecisionGuard.
bool is_narrow(const Tensor& x) { return x.defined() && dtype_size(x.dtype()) == 2; }
void check_rows(const char* op, const Tensor& x, const char* name, bool rounded) {
  if (!rounded) check_floating(op, x, name);
}

Dimensions check_heads(const char* op, const Tensor& q, const Tensor& k, bool rounded = false) {
  check_rows(op, q, "q", rounded);
  check_same_dtype(op, q, k, "k");
  check_same_device(op, q, k);
  const auto fail = [&](const char* what) {
    throw ShapeError(format("[{}] {}: q {}, k {}; expected q (B, H, Nq, d), k (B, H, Nk, d)", op, what,
                            to_string(q.shape()), to_string(k.shape())));
  };
  if (q.dim() != 4 || k.dim() != 4) fail("q and k must have four dimensions");
  if (q.size(0) != k.size(0)) fail("q and k differ in the batch");
  if (q.size(1) != k.size(1)) fail("q and k differ in the number of heads");
  if (q.size(3) != k.size(3)) fail("q and k differ in the head's width");
  return {q.size(0), q.size(1), q.size(2), k.size(2), q.size(3)};
}

void check_value(const char* op, const Tensor& k, const Tensor& v) {
  check_same_dtype(op, k, v, "v");
  check_same_device(op, k, v);
  if (v.shape() != k.shape()) {
    throw ShapeError(format("[{}] k and v differ: k {}, v {}; expected equal shapes (B, H, Nk, d)", op,
                            to_string(k.shape()), to_string(v.shape())));
  }
}

Dimensions check_packed(const char* op, const Tensor& qkv, bool rounded) {
  check_rows(op, qkv, "qkv", rounded);
  if (qkv.dim() != 5 || qkv.size(2) != 3) {
    throw ShapeError(
        format("[{}] wrong shape of the packed rows: qkv {}; expected (B, N, 3, H, d); reshape the "
               "projection's (B, N, 3·H·d)",
               op, to_string(qkv.shape())));
  }
  return {qkv.size(0), qkv.size(3), qkv.size(1), qkv.size(1), qkv.size(4)};
}

void check_mask(const char* op, const char* name, const Tensor& mask, const Tensor& q, std::int64_t batch,
                const char* axis, std::int64_t tokens) {
  if (!mask.defined()) return;
  check_same_device(op, q, mask);
  if (mask.dtype() != DType::boolean) {
    throw DTypeError(
        format("[{}] wrong dtype: {} is {}; expected bool, true for what is visible", op, name, describe(mask)));
  }
  if (mask.shape() != Shape{batch, tokens}) {
    throw ShapeError(format("[{}] {} does not fit: {} {}, q {}; expected (B, {}) = {}", op, name, name,
                            to_string(mask.shape()), to_string(q.shape()), axis, to_string(Shape{batch, tokens})));
  }
}

void check_masks(const char* op, const AttentionMasks& masks, const Tensor& q, const Dimensions& d) {
  check_mask(op, "key_mask", masks.key_mask, q, d.batch, "Nk", d.keys);
  check_mask(op, "query_mask", masks.query_mask, q, d.batch, "Nq", d.queries);
  if (const Tensor& bias = masks.bias; bias.defined()) {
    if (!is_narrow(q) || bias.dtype() != DType::f32) check_same_dtype(op, q, bias);
    check_same_device(op, q, bias);
    if (bias.dim() != 4 || bias.size(0) < 1 || bias.size(1) != d.heads || bias.size(2) != d.queries ||
        bias.size(3) != d.keys) {
      throw ShapeError(
          format("[{}] bias does not fit: bias {}, q {}; expected (G, H, Nq, Nk) = (G, {}, {}, {}) with "
                 "G >= 1, batch b using b % G",
                 op, to_string(bias.shape()), to_string(q.shape()), d.heads, d.queries, d.keys));
    }
  }
  if (const Tensor& regions = masks.regions; regions.defined()) {
    check_same_device(op, q, regions);
    if (regions.dtype() != DType::i32) {
      throw DTypeError(format("[{}] wrong dtype: regions is {}; expected i32", op, describe(regions)));
    }
    if (d.queries != d.keys) {
      throw ShapeError(format("[{}] regions need as many queries as keys: q {}, Nq = {}, Nk = {}", op,
                              to_string(q.shape()), d.queries, d.keys));
    }
    if (regions.dim() != 2 || regions.size(0) < 1 || regions.size(1) != d.keys) {
      throw ShapeError(
          format("[{}] regions does not fit: regions {}, q {}; expected (G, N) = (G, {}) with G >= 1, "
                 "batch b using b % G",
                 op, to_string(regions.shape()), to_string(q.shape()), d.keys));
    }
  }
}

void check_params(const char* op, const AttentionParams& params) {
  if (params.phi.id < attention_activation::kSoftmax || params.phi.id >= attention_activation::ActivationList::kCount) {
    throw ValueError(format("[{}] no activation has id {}; make one with parse_activation", op, params.phi.id));
  }
  if (!params.phi.is_softmax() && (!std::isfinite(params.divisor) || params.divisor == 0)) {
    throw ValueError(format("[{}] bad divisor: expected a finite number other than 0, got {}", op, params.divisor));
  }
  if (!std::isfinite(params.score_scale)) {
    throw ValueError(
        format("[{}] bad score_scale: expected a finite number (0: 1/sqrt(d)), got {}", op, params.score_scale));
  }
  if (!(params.dropout >= 0 && params.dropout < 1)) {
    throw ValueError(format("[{}] bad dropout: expected 0 <= p < 1, got {}", op, params.dropout));
  }
  if (params.dropout > 0 && params.generator == nullptr) {
    throw ValueError(format("[{}] dropout {} without a generator; set params.generator", op, params.dropout));
  }
}

// --- what the kernels get -------------------------------------------------------------------------------------------

// The numbers of a call, fixed once the forward runs.
struct Settings {
  AttentionPath path = AttentionPath::tiled;
  std::int32_t phi = attention_activation::kSoftmax;
  double score_scale = 1;
  double divisor = 1;
  AttentionDropout dropout;
};

Settings make_settings(const AttentionParams& params, const Dimensions& d) {
  Settings settings;
  settings.phi = params.phi.id;
  settings.score_scale = params.score_scale != 0
                             ? params.score_scale
                             : 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(d.head_dim, 1)));
  settings.divisor = params.phi.is_softmax() ? 1 : params.divisor;
  return settings;
}

// Takes a stream of the generator: only the ops that drop do.
AttentionDropout make_dropout(const AttentionParams& params) {
  AttentionDropout dropout;
  if (params.dropout == 0) return dropout;
  const RandomStream stream = params.generator->take();
  dropout.threshold = static_cast<std::uint32_t>(std::min(65535L, std::lround(params.dropout * 65536)));
  dropout.scale = 65536.0 / (65536.0 - dropout.threshold);
  dropout.seed = stream.seed;
  dropout.offset = static_cast<std::uint32_t>(stream.offset);
  dropout.first_sample = stream.first_sample;
  return dropout;
}

// Outside the graph, with rows a kernel can read in place (unit stride, no overlap): itself, else a copy.
Tensor with_plain_rows(const Tensor& x, int row_dim) {
  const std::int64_t width = x.size(-1);
  const bool plain = (x.strides().back() == 1 || width == 1) && (x.strides()[row_dim] >= width || x.size(row_dim) == 1);
  return plain ? x.detach() : x.detach().contiguous();
}

// A (B, H, N, d) reference made of another's dimensions. Dimensions of one element get a harmless stride.
TensorRef heads_of(const TensorRef& x, int batch, int heads, int tokens, int width) {
  TensorRef result;
  result.data = x.data;
  result.dtype = x.dtype;
  result.dim = 4;
  const int from[] = {batch, heads, tokens, width};
  for (int i = 0; i < 4; ++i) {
    result.sizes[i] = x.sizes[from[i]];
    result.strides[i] = x.strides[from[i]];
  }
  if (result.sizes[3] == 1) result.strides[3] = 1;
  if (result.sizes[2] == 1) result.strides[2] = std::max(result.strides[2], result.sizes[3]);
  return result;
}
TensorRef heads_of(const Tensor& x) { return heads_of(x.ref(), 0, 1, 2, 3); }

// q, k or v (which = 0, 1, 2) of packed (B, N, 3, H, d).
TensorRef packed_heads(const Tensor& qkv, int which) {
  TensorRef ref = qkv.ref();
  ref.data = static_cast<char*>(ref.data) + which * ref.strides[2] * static_cast<std::int64_t>(dtype_size(ref.dtype));
  return heads_of(ref, 0, 3, 1, 4);
}

// Heads side by side: (B, N, H·d) with unit last stride, as (B, H, N, d).
TensorRef joined_heads(const Tensor& x, std::int64_t heads) {
  const TensorRef ref = x.ref();
  TensorRef split = ref;
  const std::int64_t d = ref.sizes[2] / heads;
  split.dim = 4;
  split.sizes[2] = heads;
  split.strides[2] = d;
  split.sizes[3] = d;
  split.strides[3] = 1;
  return heads_of(split, 0, 2, 1, 3);
}

TensorRef optional_ref(const Tensor& x) { return x.defined() ? x.ref() : TensorRef{}; }

// The masks as the kernels read them: contiguous, outside the graph.
AttentionMasks plain(const AttentionMasks& masks) {
  const auto copy = [](const Tensor& x) { return x.defined() ? kernel_input(x) : Tensor(); };
  return {copy(masks.bias), copy(masks.key_mask), copy(masks.query_mask), copy(masks.regions)};
}

AttentionProblem make_problem(const Settings& settings, const TensorRef& q, const TensorRef& k, const TensorRef& v,
                              const AttentionMasks& masks) {
  AttentionProblem problem;
  problem.q = q;
  problem.k = k;
  problem.v = v;
  problem.bias = optional_ref(masks.bias);
  problem.key_mask = optional_ref(masks.key_mask);
  problem.query_mask = optional_ref(masks.query_mask);
  problem.regions = optional_ref(masks.regions);
  problem.phi = settings.phi;
  problem.score_scale = settings.score_scale;
  problem.divisor = settings.divisor;
  problem.dropout = settings.dropout;
  return problem;
}

const AttentionPathKernels& path_kernels(const char* op, DeviceType device, AttentionPath path) {
  const AttentionKernels& kernels = attention_kernels(device);
  const AttentionPathKernels& chosen = path == AttentionPath::linear         ? kernels.linear
                                       : path == AttentionPath::materialised ? kernels.materialised
                                                                             : kernels.tiled;
  require_kernel(op, chosen.forward != nullptr && chosen.backward != nullptr, device);
  return chosen;
}

// What a path keeps for its backward (ops/kernels/attention.h); no dimensions: nothing.
Shape attention_state_shape(const Settings& settings, const Dimensions& d) {
  switch (settings.path) {
    case AttentionPath::linear:
      return {d.batch, d.heads, d.head_dim, d.head_dim};
    case AttentionPath::materialised:
      return {d.batch, d.heads, d.queries, d.keys};
    default:
      return settings.phi == attention_activation::kSoftmax ? Shape{2, d.batch, d.heads, d.queries} : Shape{};
  }
}

// --- the two differentiable ops -------------------------------------------------------------------------------------

// What the rule keeps. Either qkv or q, k, v.
struct Saved {
  SavedTensor q, k, v, qkv;
  SavedTensor bias, key_mask, query_mask, regions;
  SavedTensor out, state;
  Settings settings;
  Dimensions d;
};

// Common to both ops: `q`, `k`, `v` are what the kernels read; needs: whether a gradient will be asked.
Tensor forward(const char* op, const TensorRef& q, const TensorRef& k, const TensorRef& v, const TensorOptions& options,
               const AttentionMasks& masks, const Settings& settings, const Dimensions& d, bool needs, Tensor* state) {
  const Shape shape{d.batch, d.queries, d.heads * d.head_dim};
  if (d.empty()) return zeros(shape, options);
  Tensor out = Tensor::empty(shape, options);
  if (const Shape kept = attention_state_shape(settings, d); needs && !kept.empty()) {
    *state =
        Tensor::empty(kept, {.dtype = options.dtype == DType::f64 ? DType::f64 : DType::f32, .device = options.device});
  }
  Workspace workspace(options.device);
  path_kernels(op, options.device.type, settings.path)
      .forward(workspace, make_problem(settings, q, k, v, masks), joined_heads(out, d.heads), optional_ref(*state));
  return out;
}

Saved save(const AttentionMasks& masks, const Tensor& out, const Tensor& state, const Settings& settings,
           const Dimensions& d) {
  Saved saved;
  saved.bias = SavedTensor(masks.bias, "bias");
  saved.key_mask = SavedTensor(masks.key_mask, "key_mask");
  saved.query_mask = SavedTensor(masks.query_mask, "query_mask");
  saved.regions = SavedTensor(masks.regions, "regions");
  saved.state = SavedTensor(state, "state");
  // Only softmax's tiles ask for the result: D_i = dO_i · O_i.
  if (settings.path == AttentionPath::tiled && settings.phi == attention_activation::kSoftmax) {
    saved.out = SavedTensor(out, "output");
  }
  saved.settings = settings;
  saved.d = d;
  return saved;
}

//     dV = (M∘Z∘P)ᵀ dO      dP = M∘Z∘(dO vᵀ)      dS = dP∘φ'(S)/c  or, for softmax,  P∘(dP - rowsum(P∘dP))
//     dq = score_scale · dS k       dk = score_scale · dSᵀ q       dbias = Σ dS over the batches that share it
void backward(const char* op, const Saved& saved, const TensorRef& q, const TensorRef& k, const TensorRef& v,
              const Tensor& grad_output, const AttentionGradients& gradients) {
  const Device device = grad_output.device();
  const Tensor grad = with_plain_rows(grad_output, 1);
  const AttentionMasks masks{saved.bias.get(), saved.key_mask.get(), saved.query_mask.get(), saved.regions.get()};
  const Tensor out = saved.out.get(), state = saved.state.get();
  Workspace workspace(device);
  path_kernels(op, device.type, saved.settings.path)
      .backward(workspace, make_problem(saved.settings, q, k, v, masks),
                out.defined() ? joined_heads(out, saved.d.heads) : TensorRef{}, optional_ref(state),
                joined_heads(grad, saved.d.heads), gradients);
}

// Whether a path's kernels read 16-bit rows; the others get them widened.
bool reads_narrow(Device device, AttentionPath path) {
  return device.type == DeviceType::cuda && path == AttentionPath::tiled;
}

// `rounded`: q, k and v may have 16 bits, and so has the result then.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params,
              const AttentionMasks& masks, bool rounded) {
  const char* op = "attention";
  const Dimensions d = check_heads(op, q, k, rounded);
  check_value(op, k, v);
  check_masks(op, masks, q, d);
  check_params(op, params);
  Settings settings = make_settings(params, d);
  settings.path =
      choose_attention_path(params, d.queries, d.keys, d.head_dim, masks.bias.defined(), masks.regions.defined()).path;
  if (is_narrow(q) && !reads_narrow(q.device(), settings.path)) {
    return attend(q.to(DType::f32), k.to(DType::f32), v.to(DType::f32), params, masks, false).to(q.dtype());
  }
  settings.dropout = make_dropout(params);

  const Tensor q_rows = with_plain_rows(q, 2), k_rows = with_plain_rows(k, 2), v_rows = with_plain_rows(v, 2);
  const AttentionMasks used = plain(masks);
  const bool needs = needs_grad({q, k, v, masks.bias});
  Tensor state;
  const Tensor out =
      forward(op, heads_of(q_rows), heads_of(k_rows), heads_of(v_rows), q.options(), used, settings, d, needs, &state);
  Saved saved = save(used, out, state, settings, d);
  saved.q = SavedTensor(q_rows, "q");
  saved.k = SavedTensor(k_rows, "k");
  saved.v = SavedTensor(v_rows, "v");
  return record(op, out, {q, k, v, masks.bias}, [op, saved](const Tensor& grad_output, NeededMask needed) -> Gradients {
    const Tensor inputs[] = {saved.q.get(), saved.k.get(), saved.v.get(), saved.bias.get()};
    Gradients gradients(4);
    for (std::size_t i = 0; i < 4; ++i) {
      if (!needed[i]) continue;
      gradients[i] = saved.d.empty() ? zeros_like(inputs[i]) : empty_like(inputs[i]);
    }
    if (saved.d.empty()) return gradients;
    const auto written = [&](std::size_t i) { return needed[i] ? heads_of(gradients[i]) : TensorRef{}; };
    backward(op, saved, heads_of(inputs[0]), heads_of(inputs[1]), heads_of(inputs[2]), grad_output,
             {written(0), written(1), written(2), optional_ref(gradients[3])});
    return gradients;
  });
}

Tensor attend_qkv(const Tensor& qkv, const AttentionParams& params, const AttentionMasks& masks, bool rounded) {
  const char* op = "attention_qkv";
  const Dimensions d = check_packed(op, qkv, rounded);
  check_masks(op, masks, qkv, d);
  check_params(op, params);
  Settings settings = make_settings(params, d);
  settings.path =
      choose_attention_path(params, d.queries, d.keys, d.head_dim, masks.bias.defined(), masks.regions.defined()).path;
  if (is_narrow(qkv) && !reads_narrow(qkv.device(), settings.path)) {
    return attend_qkv(qkv.to(DType::f32), params, masks, false).to(qkv.dtype());
  }
  settings.dropout = make_dropout(params);

  const Tensor rows = with_plain_rows(qkv, 1);
  const AttentionMasks used = plain(masks);
  Tensor state;
  const Tensor out = forward(op, packed_heads(rows, 0), packed_heads(rows, 1), packed_heads(rows, 2), qkv.options(),
                             used, settings, d, needs_grad({qkv, masks.bias}), &state);
  Saved saved = save(used, out, state, settings, d);
  saved.qkv = SavedTensor(rows, "qkv");
  return record(op, out, {qkv, masks.bias}, [op, saved](const Tensor& grad_output, NeededMask needed) -> Gradients {
    const Tensor packed = saved.qkv.get(), bias = saved.bias.get();
    Gradients gradients(2);
    if (needed[0]) gradients[0] = saved.d.empty() ? zeros_like(packed) : empty_like(packed);
    if (needed[1]) gradients[1] = saved.d.empty() ? zeros_like(bias) : empty_like(bias);
    if (saved.d.empty()) return gradients;
    const auto written = [&](int which) { return needed[0] ? packed_heads(gradients[0], which) : TensorRef{}; };
    backward(op, saved, packed_heads(packed, 0), packed_heads(packed, 1), packed_heads(packed, 2), grad_output,
             {written(0), written(1), written(2), optional_ref(gradients[1])});
    return gradients;
  });
}

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params,
                 const AttentionMasks& masks) {
  const bool narrow = computes_narrow(q) && computes_narrow(k) && computes_narrow(v);
  if (!narrow) return attend(q, k, v, params, masks, false);
  const DType dtype = product_dtype();
  return attend(q.to(dtype), k.to(dtype), v.to(dtype), params, masks, true);
}

Tensor attention_qkv(const Tensor& qkv, const AttentionParams& params, const AttentionMasks& masks) {
  const bool narrow = computes_narrow(qkv);
  return attend_qkv(narrow ? qkv.to(product_dtype()) : qkv, params, masks, narrow);
}

// --- for looking at -------------------------------------------------------------------------------------------------

Tensor attention_map(const Tensor& q, const Tensor& k, const AttentionParams& params, const AttentionMasks& masks) {
  const char* op = "attention_map";
  const Dimensions d = check_heads(op, q, k);
  check_masks(op, masks, q, d);
  AttentionParams undropped = params;
  undropped.dropout = 0;
  check_params(op, undropped);
  const Tensor q_rows = with_plain_rows(q, 2), k_rows = with_plain_rows(k, 2);
  const AttentionMasks used = plain(masks);
  const Shape shape{d.batch, d.heads, d.queries, d.keys};
  if (d.empty()) return non_differentiable("attention_map", zeros(shape, q.options()));
  Tensor map = Tensor::empty(shape, q.options());
  const AttentionKernels& kernels = attention_kernels(q.device().type);
  require_kernel(op, kernels.map != nullptr, q.device().type);
  Workspace workspace(q.device());
  kernels.map(workspace, make_problem(make_settings(undropped, d), heads_of(q_rows), heads_of(k_rows), {}, used),
              map.ref());
  return non_differentiable("attention_map", map);
}

AttentionNorms attention_norms(const Tensor& x, const Tensor& q, const Tensor& k, const AttentionParams& params,
                               const AttentionMasks& masks) {
  const char* op = "attention_norms";
  const Dimensions d = check_heads(op, q, k);
  check_same_dtype(op, q, x, "x");
  check_same_device(op, q, x);
  if (d.queries != d.keys || x.dim() != 3 || x.size(0) != d.batch || x.size(1) != d.keys) {
    throw ShapeError(
        format("[{}] x, q and k do not belong together: x {}, q {}, k {}; expected x (B, N, D), q and k "
               "(B, H, N, d)",
               op, to_string(x.shape()), to_string(q.shape()), to_string(k.shape())));
  }
  check_masks(op, masks, q, d);
  AttentionParams undropped = params;
  undropped.dropout = 0;
  check_params(op, undropped);
  TensorOptions options = q.options();
  options.dtype = DType::f64;
  const Tensor all = zeros({4, d.batch, d.heads}, options);
  if (!d.empty() && x.size(2) > 0) {
    const Tensor q_rows = with_plain_rows(q, 2), k_rows = with_plain_rows(k, 2), x_rows = with_plain_rows(x, 1);
    const AttentionMasks used = plain(masks);
    const AttentionKernels& kernels = attention_kernels(q.device().type);
    require_kernel(op, kernels.norms != nullptr, q.device().type);
    Workspace workspace(q.device());
    kernels.norms(workspace, make_problem(make_settings(undropped, d), heads_of(q_rows), heads_of(k_rows), {}, used),
                  x_rows.ref(), all.ref());
  }
  const Shape shape{d.batch, d.heads};
  const auto row = [&](std::int64_t i) {
    return non_differentiable("attention_norms",
                              make_view(all, shape, shape.contiguous_strides(), i * d.batch * d.heads));
  };
  return {row(0), row(1), row(2), row(3)};
}

}  // namespace polygrad

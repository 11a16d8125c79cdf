// polygrad_bench attention: the packed op, forward and backward, with its memory and its error.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "apps/bench/bench.h"
#include "apps/bench/gpu.h"
#include "apps/bench/memory.h"
#include "apps/bench/report.h"
#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/format.h"
#include "engine/memory.h"
#include "ops/attention.h"
#include "ops/index.h"
#include "ops/view.h"

namespace polygrad::bench {
namespace {

void check(const AttentionOptions& options) {
  if (options.batch < 1 || options.heads < 1 || options.tokens < 1 || options.head_dim < 1) {
    throw ValueError(format("[attention] --batch {} --heads {} --tokens {} --head-dim {}: sizes must be positive",
                            options.batch, options.heads, options.tokens, options.head_dim));
  }
  if (options.lengths.empty()) return;
  if (static_cast<std::int64_t>(options.lengths.size()) != options.batch) {
    throw ValueError(format("[attention] --lengths has {} numbers; expected one for each of the {} rows of --batch",
                            options.lengths.size(), options.batch));
  }
  for (const std::int64_t length : options.lengths) {
    if (length >= 1 && length <= options.tokens) continue;
    throw ValueError(format("[attention] --lengths {}: expected 1 ... {} (--tokens)", length, options.tokens));
  }
}

double parse_divisor(const AttentionOptions& options, const Activation& phi) {
  const std::string& scale = options.scale;
  const double root = std::sqrt(static_cast<double>(options.tokens));
  if (scale == "auto") return phi.power() > 0 ? root : 1;
  if (scale == "sqrt_n") return root;
  if (scale == "n") return static_cast<double>(options.tokens);
  char* end = nullptr;
  const double value = std::strtod(scale.c_str(), &end);
  if (scale.empty() || *end != '\0') {
    throw ValueError(format("[attention] --scale {}: expected a number, sqrt_n, n or auto", scale));
  }
  return value;
}

// bool (batch, tokens): true within each row's length.
Tensor length_mask(const AttentionOptions& options, Device device) {
  std::vector<std::uint8_t> values;
  for (const std::int64_t length : options.lengths) {
    for (std::int64_t i = 0; i < options.tokens; ++i) values.push_back(i < length ? 1 : 0);
  }
  return Tensor::from_vector(values, {options.batch, options.tokens}).to(DType::boolean).to(device);
}

// Up to `count` positions, evenly spread over 0 ... tokens - 1, first and last among them.
Tensor sample_positions(std::int64_t tokens, std::int64_t count, Device device) {
  std::vector<std::int64_t> positions;
  for (std::int64_t i = 0; i < std::min(tokens, count); ++i) {
    positions.push_back(std::min(tokens, count) == 1 ? 0 : i * (tokens - 1) / (std::min(tokens, count) - 1));
  }
  return Tensor::from_vector(positions).to(device);
}

// The largest difference, divided by the largest magnitude of `expected`.
double normalised_error(const Tensor& got, const Tensor& expected) {
  const std::vector<double> a = got.to(DType::f64).to_vector<double>(), b = expected.to_vector<double>();
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
    largest = std::max(largest, std::abs(b[i]));
  }
  return largest > 0 ? worst / largest : worst;
}

struct Problem {
  Tensor qkv;       // (B, N, 3, H, d), a leaf with a gradient
  Tensor gradient;  // of the output: (B, N, H d)
  AttentionParams params;
  AttentionMasks masks;
};

// Leaves of the dtype that activations of this precision have.
Problem make_problem(const AttentionOptions& options, std::int64_t tokens, Precision precision, Device device) {
  Generator generator(1);
  const TensorOptions random{.device = device, .generator = &generator};
  const auto values = [&](const Shape& shape) { return randn(shape, random).to(storage_of(precision)); };
  Problem problem;
  problem.qkv = values({options.batch, tokens, 3, options.heads, options.head_dim});
  problem.qkv.set_requires_grad(!options.forward_only);
  problem.gradient = values({options.batch, tokens, options.heads * options.head_dim});
  problem.params.phi = parse_activation(options.phi);
  problem.params.path = parse_attention_path(options.path);
  problem.params.divisor = parse_divisor(options, problem.params.phi);
  return problem;
}

// The error of one forward and backward (or a forward alone) against f64, materialised, on sampled rows: of the output
// and of dq always; of dk and dv where phi is elementwise, since there a key's gradient needs no other key.
double max_error(const Problem& problem, const Tensor& y, const AttentionOptions& options) {
  constexpr std::int64_t kSamples = 16;
  const std::int64_t batch = options.batch, tokens = options.tokens, heads = options.heads, head_dim = options.head_dim;
  const Tensor grad_qkv = problem.qkv.grad();
  const Tensor positions = sample_positions(tokens, kSamples, y.device());
  // Part 0, 1 or 2 (q, k, v) of packed rows as (B, H, N, d).
  const auto part = [](const Tensor& packed, int index) { return permute(select(packed, 2, index), {0, 2, 1, 3}); };
  const auto heads_of = [&](const Tensor& rows) {
    return permute(reshape(rows, {batch, tokens, heads, head_dim}), {0, 2, 1, 3});
  };
  const auto sampled = [&](const Tensor& x) { return index_select(x.detach().to(DType::f64), 2, positions); };
  const auto sampled_mask = [&](const Tensor& mask) {
    return mask.defined() ? index_select(mask, 1, positions) : mask;
  };
  const auto leaf = [](const Tensor& x) { return x.detach().to(DType::f64).contiguous().set_requires_grad(true); };
  AttentionParams params = problem.params;
  params.path = AttentionPath::materialised;

  double worst = 0;
  const auto compare = [&](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMasks& masks, bool rows) {
    const Tensor gradient = heads_of(problem.gradient);
    const Tensor out = attention(q, k, v, params, masks);  // (B, Nq, H d)
    if (rows) {
      const Tensor got = permute(sampled(heads_of(y)), {0, 2, 1, 3});
      worst = std::max(worst, normalised_error(got, reshape(out.detach(), got.shape())));
    }
    if (options.forward_only) return;
    const Tensor upper = permute(rows ? sampled(gradient) : gradient, {0, 2, 1, 3}).to(DType::f64);
    out.backward(reshape(upper, out.shape()));
    if (rows) {
      worst = std::max(worst, normalised_error(sampled(part(grad_qkv, 0)), q.grad()));
    } else {
      worst = std::max(worst, normalised_error(sampled(part(grad_qkv, 1)), k.grad()));
      worst = std::max(worst, normalised_error(sampled(part(grad_qkv, 2)), v.grad()));
    }
  };
  const Tensor q = part(problem.qkv.detach(), 0), k = part(problem.qkv.detach(), 1), v = part(problem.qkv.detach(), 2);
  AttentionMasks masks = problem.masks;
  masks.query_mask = sampled_mask(problem.masks.query_mask);
  compare(leaf(sampled(q)), leaf(k), leaf(v), masks, true);
  if (!problem.params.phi.is_softmax() && !options.forward_only) {
    masks = problem.masks;
    masks.key_mask = sampled_mask(problem.masks.key_mask);
    compare(leaf(q), leaf(sampled(k)), leaf(sampled(v)), masks, false);
  }
  return worst;
}

// The operations of forward and backward (or a forward alone), without recomputation.
double count_flops(const AttentionOptions& options, bool linear) {
  std::vector<std::int64_t> lengths = options.lengths;
  if (lengths.empty()) lengths.assign(static_cast<std::size_t>(options.batch), options.tokens);
  double pairs = 0;
  for (const std::int64_t length : lengths) {
    pairs += static_cast<double>(length) * static_cast<double>(linear ? options.head_dim : length);
  }
  return (options.forward_only ? 4.0 : 12.0) * static_cast<double>(options.heads) *
         static_cast<double>(options.head_dim) * pairs;
}

}  // namespace

std::string run_attention(const AttentionOptions& options, const Common& common) {
  check(options);
  const Device device = common.device;
  const Precision precision = precision_of("[attention] --precision", options.precision, device);
  const PrecisionGuard guard(precision, device);
  const Problem small = make_problem(options, std::min<std::int64_t>(options.tokens, 64), precision, device);
  const Tensor warm = attention_qkv(small.qkv, small.params);  // code and threads are made before memory is counted
  if (!options.forward_only) warm.backward(small.gradient);

  Problem problem = make_problem(options, options.tokens, precision, device);
  if (!options.lengths.empty()) problem.masks.key_mask = problem.masks.query_mask = length_mask(options, device);
  const AttentionChoice choice =
      choose_attention_path(problem.params, options.tokens, options.tokens, options.head_dim, false, false);

  std::vector<double> forward, backward;
  Spans forwards, backwards;  // of runs that nobody looked at yet
  const auto run_with = [&](const AttentionMasks& masks) {
    problem.qkv.zero_grad();
    const Moment start(device);
    const Tensor y = attention_qkv(problem.qkv, problem.params, masks);
    const Moment middle(device);
    if (!options.forward_only) y.backward(problem.gradient);
    backwards.add(middle, Moment(device));
    forwards.add(start, middle);
    return y;
  };
  // The seconds of one of the runs since the last look.
  const auto look = [&] {
    forward.push_back(forwards.mean());
    backward.push_back(backwards.mean());
    return forward.back() + backward.back();
  };
  const auto run = [&] { return run_with(problem.masks); };
  double extra = 0;
  Tensor y;
  trim_memory(device);
  if (common.on_gpu()) {
    reset_peak_memory(device);
    const std::size_t before = memory_stats(device).bytes_in_use;
    y = run();
    extra = static_cast<double>(memory_stats(device).peak_bytes_in_use - before) / (1 << 20);
  } else {
    const PeakMemory peak;
    y = run();
    extra = peak.growth_mib();
    if (peak.sampled()) say(common.quiet, "peak_extra_mib is sampled: /proc/self/clear_refs is not writable");
  }
  const double error = max_error(problem, y, options);
  y = Tensor();

  const std::unique_ptr<Limit> ceiling = make_ceiling(common, precision);
  const std::optional<Batches> batches =
      common.on_gpu() ? std::optional<Batches>(std::in_place, device, [&] { run(); }) : std::nullopt;
  look();
  forward.clear();
  backward.clear();
  const double flops = count_flops(options, choice.path == AttentionPath::linear);
  const Paired paired = measure_pairs(*ceiling, flops, common.pairs, [&] {
    if (!batches) {
      run();
      return look();
    }
    const double once = (*batches)();
    look();
    return once;
  });
  const double forward_ms = 1e3 * median(forward), backward_ms = 1e3 * median(backward);
  say(common.quiet, format("attention {} {} ({}): forward {:.2f} ms, backward {:.2f} ms, {:.0f} GFLOP/s of {:.0f} "
                           "({:.2f}), {:.1f} MiB more, error {:.1e}",
                           options.phi, to_string(choice.path), choice.why, forward_ms, backward_ms, paired.gflops,
                           paired.ceiling_gflops, paired.ratio, extra, error));
  // What the masks leave of the time at full length, in turns, beside what they leave of the work.
  std::vector<double> shares;
  double work_share = 1;
  if (!options.lengths.empty()) {
    AttentionOptions whole = options;
    whole.lengths.clear();
    const bool linear = choice.path == AttentionPath::linear;
    work_share = count_flops(options, linear) / count_flops(whole, linear);
    for (int i = 0; i < common.pairs; ++i) {
      run();
      const double masked = look();
      run_with({});
      shares.push_back(masked / look());
    }
    say(common.quiet, format("the masks leave {:.3f} of the work and {:.3f} of the time", work_share, median(shares)));
  }
  Report report("attention", device);
  report.add("phi", options.phi)
      .add("path", to_string(choice.path))
      .add("divisor", problem.params.divisor)
      .add("batch", options.batch)
      .add("heads", options.heads)
      .add("tokens", options.tokens)
      .add("head_dim", options.head_dim);
  if (!options.lengths.empty()) {
    report.add("lengths", options.lengths).add("work_share", work_share).add("cost_share", median(shares));
  }
  if (common.on_gpu() || precision != Precision::f32) report.add("precision", options.precision);
  if (options.forward_only) report.add("forward_only", true);
  return report.add("forward_ms", forward_ms)
      .add("backward_ms", backward_ms)
      .add(paired)
      .add("peak_extra_mib", extra)
      .add("max_error", error)
      .line();
}

}  // namespace polygrad::bench

// polygrad_bench op: the time of an op's forward and backward for each element of its input, beside a memory copy's.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "apps/bench/bench.h"
#include "apps/bench/gpu.h"
#include "apps/bench/op_subjects.h"
#include "apps/bench/report.h"
#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/format.h"
#include "engine/parallel.h"

namespace polygrad::bench {
namespace {

// "8224x768" as (8224, 768).
Shape parse_shape(const std::string& text) {
  Shape shape;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find('x', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const bool digits = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoll(part) < 1 || shape.dim() == kMaxDims) {
      throw ValueError(
          format("[op] --shape {}: expected up to {} positive sizes joined by x, such as 8224x768", text, kMaxDims));
    }
    shape.push_back(std::stoll(part));
    begin = end + 1;
  }
  return shape;
}

// The inverse: "8224x768".
std::string shape_text(const Shape& shape) {
  std::string text;
  for (const std::int64_t size : shape.vec()) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text;
}

// The ceiling of ops that move memory.
class CopyLimit {
 public:
  virtual ~CopyLimit() = default;
  // Bytes read and written in a second, of the copies that fill about so many seconds.
  virtual double measure(double target_seconds) = 0;
};

// On a GPU: the library's own copy, which has no arithmetic.
class GpuCopy : public CopyLimit {
 public:
  GpuCopy(const Tensor& like)
      : from_(ones_like(like)), to_(zeros_like(like)), batches_(like.device(), [this] { to_.copy_(from_); }) {}
  double measure(double) override { return 2.0 * sizeof(float) * static_cast<double>(from_.numel()) / batches_(); }

 private:
  Tensor from_, to_;
  Batches batches_;
};

// On the CPU: a copy of as many bytes as the subject's tensor has, on all threads. In pieces
// of which size is found by trying: the C library writes large pieces past the caches, which pays for some sizes only.
class MemoryCopy : public CopyLimit {
 public:
  explicit MemoryCopy(std::int64_t floats) : floats_(floats), from_(ones({floats})), to_(zeros({floats})) {
    double best = 0;
    std::int64_t chosen = floats;
    for (const std::int64_t piece :
         {std::int64_t{1} << 14, std::int64_t{1} << 17, (floats + num_threads() - 1) / num_threads()}) {
      piece_ = piece;
      const double rate = std::max({measure(0), measure(0), measure(0)});
      if (rate > best) chosen = piece;
      best = std::max(best, rate);
    }
    piece_ = chosen;
  }

  double measure(double target_seconds) override {
    const float* from = from_.data<float>();
    float* to = to_.data<float>();
    double spent = 0;
    int copies = 0;
    do {
      const double start = seconds();
      parallel_for(0, floats_, piece_, [&](std::int64_t begin, std::int64_t end) {
        std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin) * sizeof(float));
      });
      spent += seconds() - start;
      ++copies;
    } while (spent < target_seconds);
    return 2.0 * sizeof(float) * static_cast<double>(floats_) * copies / spent;
  }

 private:
  std::int64_t floats_;
  Tensor from_, to_;  // memory as the ops have it
  std::int64_t piece_ = 1;
};

struct OpTime {
  double nanoseconds = 0;  // of one run: median
  double bandwidth = 0;    // of the fewest bytes that the op can move, bytes a second: median
  double copy_share = 0;   // of the copy's bandwidth: median of the pairs
};

OpTime measure_op(CopyLimit& copy, double bytes, int pairs, const std::function<double()>& run) {
  constexpr double kSlice = 0.02;  // seconds, of the copies and at least of the runs of a pair
  run();
  copy.measure(0);
  std::vector<double> times, rates, shares;
  for (int pair = 0; pair < pairs; ++pair) {
    const double before = copy.measure(kSlice / 2);
    double spent = 0;
    int runs = 0;
    const double start = seconds();
    do {
      spent += run();
      ++runs;
    } while (seconds() - start < kSlice);
    const double limit = 2 / (1 / before + 1 / copy.measure(kSlice / 2));
    times.push_back(1e9 * spent / runs);
    rates.push_back(bytes * runs / spent);
    shares.push_back(rates.back() / limit);
  }
  return {median(times), median(rates), median(shares)};
}

std::string measure_subject(const OpSubject& subject, const OpOptions& options, const Common& common) {
  Shape shape = parse_shape(options.shape.empty() ? subject.shape : options.shape);
  // A GPU's caches hold what is large for a CPU.
  constexpr std::int64_t kGpuFactor = 32;
  if (options.shape.empty() && common.on_gpu()) shape[0] *= kGpuFactor;
  const std::string text = shape_text(shape);
  if (shape.dim() < 2 && std::string(subject.name) == "transpose") {
    throw ValueError(format("[op] --shape {}: transpose needs two dimensions", text));
  }
  Generator generator(1);
  Tensor x = randn(shape, {.device = common.device, .requires_grad = true, .generator = &generator});
  const double elements = static_cast<double>(x.numel()), bytes = sizeof(float) * elements;
  const std::function<Tensor()> run = subject.prepare(x);
  const std::unique_ptr<CopyLimit> copy = common.on_gpu()
                                              ? std::unique_ptr<CopyLimit>(std::make_unique<GpuCopy>(x.detach()))
                                              : std::make_unique<MemoryCopy>(x.numel());
  const int pairs = std::max(1, common.pairs);
  // `once` adds what counts of a run to the spans: on a GPU of many runs behind each other.
  Spans spans;
  const auto measured = [&](const std::function<void()>& once) -> std::function<double()> {
    if (!common.on_gpu()) {
      return [&spans, once] {
        once();
        return spans.mean();
      };
    }
    return [&spans, batches = Batches(common.device, once)] {
      batches();
      return spans.mean();
    };
  };
  const auto look = [&](const Moment& start) { spans.add(start, Moment(common.device)); };

  const OpTime forward = measure_op(*copy, subject.forward_tensors * bytes, pairs, measured([&] {
    const NoGradGuard no_grad;
    const Moment start(common.device);
    const Tensor y = run();
    look(start);
  }));
  std::optional<OpTime> backward;
  if (subject.backward_tensors > 0) {
    const Tensor gradient = ones_like(run());
    backward = measure_op(*copy, subject.backward_tensors * bytes, pairs, measured([&] {
      x.zero_grad();
      const Tensor y = run();
      const Moment start(common.device);
      y.backward(gradient);
      look(start);
    }));
  }
  std::string said = format("{:<11} {:<18} {:<11} forward {:.3f} ns an element, {:.2f} of a copy", subject.family,
                            subject.name, text, forward.nanoseconds / elements, forward.copy_share);
  Report report("op", common.device);
  report.add("family", subject.family)
      .add("name", subject.name)
      .add("shape", shape.vec())
      .add("ns_per_element", forward.nanoseconds / elements)
      .add("gbytes_per_s", 1e-9 * forward.bandwidth)
      .add("copy_share", forward.copy_share);
  if (backward) {
    said += format("; backward {:.3f}, {:.2f}", backward->nanoseconds / elements, backward->copy_share);
    report.add("backward_ns_per_element", backward->nanoseconds / elements)
        .add("backward_gbytes_per_s", 1e-9 * backward->bandwidth)
        .add("backward_copy_share", backward->copy_share);
  }
  say(common.quiet, said);
  return report.line();
}

}  // namespace

std::string op_names() {
  std::string names;
  for (const OpSubject& subject : op_subjects()) names += (names.empty() ? "" : " ") + std::string(subject.name);
  return names;
}

std::vector<std::string> run_op(const OpOptions& options, const Common& common) {
  std::vector<std::string> lines;
  for (const OpSubject& subject : op_subjects()) {
    if (options.name == "all" || options.name == subject.name)
      lines.push_back(measure_subject(subject, options, common));
  }
  if (lines.empty()) {
    throw ValueError(format("[op] --name {}: no such op here; expected all, or one of: {}", options.name, op_names()));
  }
  return lines;
}

}  // namespace polygrad::bench

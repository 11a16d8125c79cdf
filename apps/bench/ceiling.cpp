#include "apps/bench/ceiling.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>

#include "engine/error.h"
#include "engine/parallel.h"
#include "ops/cpu/gemm.h"

namespace polygrad::bench {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

Ceiling::Ceiling() : a_(kSize * kSize), b_(kSize * kSize), c_(kSize * kSize) {
  for (std::size_t i = 0; i < a_.size(); ++i) {
    a_[i] = static_cast<float>(i % 7) - 3;
    b_[i] = static_cast<float>(i % 5) - 2;
  }
  double best = 0;
  for (const GemmProvider provider : {GemmProvider::eigen, GemmProvider::onednn}) {
    if (!has_gemm_provider(provider)) continue;
    const GemmProvider current = provider_;
    provider_ = provider;
    product();  // the first one makes code and pages
    const double rate = 1 / std::min(product(), product());
    if (rate > best) {
      best = rate;
    } else {
      provider_ = current;
    }
  }
}

double Ceiling::product() const {
  const double start = seconds();
  const std::int64_t slab = (kSize + num_threads() - 1) / num_threads();
  parallel_for(0, kSize, slab, [&](std::int64_t begin, std::int64_t end) {
    const auto multiply = provider_ == GemmProvider::onednn ? cpu::onednn_gemm : cpu::eigen_gemm<float>;
    multiply(false, false, end - begin, kSize, kSize, 1.0f, a_.data() + begin * kSize, kSize, b_.data(), kSize, 0.0f,
             c_.data() + begin * kSize, kSize);
  });
  return seconds() - start;
}

double Ceiling::measure(double target_seconds) const {
  double spent = 0;
  int products = 0;
  do {
    spent += product();
    ++products;
  } while (spent < target_seconds);
  return 2e-9 * kSize * kSize * kSize * products / spent;
}

namespace {

struct Pair {
  double seconds = 0, gflops = 0, ceiling = 0;
  double ratio() const { return gflops / ceiling; }
};

Pair measure_pair(const Limit& ceiling, double flops, double slice, const std::function<double()>& subject) {
  // The ceiling is measured on both sides of the subject, since the machine's speed drifts meanwhile.
  const double before = ceiling.measure(slice / 2);
  double spent = 0;
  int runs = 0;
  const double start = seconds();
  do {
    spent += subject();
    ++runs;
  } while (seconds() - start < slice);
  const double after = ceiling.measure(slice / 2);
  return {spent / runs, 1e-9 * flops * runs / spent, 2 / (1 / before + 1 / after)};
}

bool next_turn() {
  std::string line;
  return std::getline(std::cin, line) && line != "end";
}

void tell(std::size_t turn, const Pair& pair) {
  std::printf("{\"turn\":%zu,\"seconds\":%.6g,\"gflops\":%.6g,\"ceiling_gflops\":%.6g,\"ratio\":%.6g}\n", turn,
              pair.seconds, pair.gflops, pair.ceiling, pair.ratio());
  std::fflush(stdout);
}

}  // namespace

Paired measure_pairs(const Limit& ceiling, double flops, int pairs, const std::function<double()>& subject) {
  const double once = subject();
  const double slice = std::clamp(once / 4, 0.1, 1.0);  // seconds that the ceiling takes in a pair
  std::vector<double> times, rates, ceilings, ratios;
  if (pairs == kTurns) tell(0, measure_pair(ceiling, flops, slice, subject));  // ready, and warm
  while (pairs == kTurns ? next_turn() : static_cast<int>(times.size()) < pairs) {
    const Pair pair = measure_pair(ceiling, flops, slice, subject);
    times.push_back(pair.seconds);
    rates.push_back(pair.gflops);
    ceilings.push_back(pair.ceiling);
    ratios.push_back(pair.ratio());
    if (pairs == kTurns) tell(times.size(), pair);
  }
  if (times.empty()) throw ValueError("[bench] --turns: no line on stdin asked for a turn");
  return {median(times), median(rates), median(ceilings), median(ratios)};
}

}  // namespace polygrad::bench

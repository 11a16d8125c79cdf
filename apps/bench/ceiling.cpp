#include "apps/bench/ceiling.h"

#include <algorithm>
#include <chrono>

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

Paired measure_pairs(const Ceiling& ceiling, double flops, int pairs, const std::function<double()>& subject) {
  const double once = subject();
  const double slice = std::clamp(once / 4, 0.1, 1.0);  // seconds that the ceiling takes in a pair
  std::vector<double> times, rates, ceilings, ratios;
  for (int pair = 0; pair < pairs; ++pair) {
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
    const double rate = 1e-9 * flops * runs / spent, limit = 2 / (1 / before + 1 / after);
    times.push_back(spent / runs);
    rates.push_back(rate);
    ceilings.push_back(limit);
    ratios.push_back(rate / limit);
  }
  return {median(times), median(rates), median(ceilings), median(ratios)};
}

}  // namespace polygrad::bench

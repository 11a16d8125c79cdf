#include "tests/reference/attention.h"

#include <cmath>
#include <functional>
#include <map>
#include <stdexcept>
#include <utility>

namespace reference {
namespace {

long double power(long double s, int p) { return p == 0 ? 1 : s * power(s, p - 1); }

// --- Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) -----------------------------

struct Philox {
  std::uint32_t key[2], counter[4];

  void round() {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    const std::uint32_t next[4] = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    for (int i = 0; i < 4; ++i) counter[i] = next[i];
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  std::uint32_t word(int i) {
    for (int r = 0; r < 10; ++r) round();
    return counter[i];
  }
};

// --- indexing -------------------------------------------------------------------------------------------------------

double& at(Array& a, std::int64_t i, std::int64_t j, std::int64_t k, std::int64_t l) {
  return a.data[static_cast<std::size_t>(((i * a.shape[1] + j) * a.shape[2] + k) * a.shape[3] + l)];
}
double at(const Array& a, std::int64_t i, std::int64_t j, std::int64_t k, std::int64_t l) {
  return a.data[static_cast<std::size_t>(((i * a.shape[1] + j) * a.shape[2] + k) * a.shape[3] + l)];
}
double at(const Array& a, std::int64_t i, std::int64_t j) {
  return a.data[static_cast<std::size_t>(i * a.shape[1] + j)];
}
// Element e of head h in a row (b, i) of (B, N, H·d).
double& joined(Array& a, std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t e, std::int64_t d) {
  return a.data[static_cast<std::size_t>((b * a.shape[1] + i) * a.shape[2] + h * d + e)];
}

bool allowed(const AttentionSpec& spec, std::int64_t b, std::int64_t i, std::int64_t j) {
  if (!spec.key_mask.shape.empty() && at(spec.key_mask, b, j) == 0) return false;
  if (!spec.query_mask.shape.empty() && at(spec.query_mask, b, i) == 0) return false;
  if (spec.regions.shape.empty()) return true;
  const std::int64_t g = b % spec.regions.shape[0];
  return at(spec.regions, g, i) == at(spec.regions, g, j);
}

double scale_of(const AttentionSpec& spec, std::int64_t d) {
  return spec.score_scale != 0 ? spec.score_scale : 1 / std::sqrt(static_cast<double>(d));
}

// S = q kᵀ · scale + bias
Array scores(const Array& q, const Array& k, const AttentionSpec& spec) {
  const std::int64_t d = q.shape[3];
  Array s({q.shape[0], q.shape[1], q.shape[2], k.shape[2]});
  for (std::int64_t b = 0; b < s.shape[0]; ++b)
    for (std::int64_t h = 0; h < s.shape[1]; ++h)
      for (std::int64_t i = 0; i < s.shape[2]; ++i)
        for (std::int64_t j = 0; j < s.shape[3]; ++j) {
          double sum = 0;
          for (std::int64_t e = 0; e < d; ++e) sum += at(q, b, h, i, e) * at(k, b, h, j, e);
          sum *= scale_of(spec, d);
          if (!spec.bias.shape.empty()) sum += at(spec.bias, b % spec.bias.shape[0], h, i, j);
          at(s, b, h, i, j) = sum;
        }
  return s;
}

// P from S.
Array map_of_scores(const Array& s, const AttentionSpec& spec) {
  Array p(s.shape);
  for (std::int64_t b = 0; b < s.shape[0]; ++b)
    for (std::int64_t h = 0; h < s.shape[1]; ++h)
      for (std::int64_t i = 0; i < s.shape[2]; ++i) {
        if (spec.phi != "softmax") {
          for (std::int64_t j = 0; j < s.shape[3]; ++j) {
            if (!allowed(spec, b, i, j)) continue;
            at(p, b, h, i, j) = static_cast<double>(phi(spec.phi, at(s, b, h, i, j)) / spec.divisor);
          }
          continue;
        }
        double largest = -INFINITY, sum = 0;
        for (std::int64_t j = 0; j < s.shape[3]; ++j)
          if (allowed(spec, b, i, j)) largest = std::fmax(largest, at(s, b, h, i, j));
        for (std::int64_t j = 0; j < s.shape[3]; ++j)
          if (allowed(spec, b, i, j)) sum += std::exp(at(s, b, h, i, j) - largest);
        for (std::int64_t j = 0; j < s.shape[3]; ++j)
          if (allowed(spec, b, i, j)) at(p, b, h, i, j) = std::exp(at(s, b, h, i, j) - largest) / sum;
      }
  return p;
}

double norm(const Array& a) {
  double sum = 0;
  for (const double value : a.data) sum += value * value;
  return std::sqrt(sum);
}

// The norm of the dense Jacobian of f at x.
double jacobian_norm(const std::function<Array(const Array&)>& f, const Array& x) {
  double sum = 0;
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    const double step = 1e-5 * std::fmax(1.0, std::fabs(x.data[i]));
    Array above = x, below = x;
    above.data[i] += step;
    below.data[i] -= step;
    const Array high = f(above), low = f(below);
    for (std::size_t j = 0; j < high.data.size(); ++j) {
      const double slope = (high.data[j] - low.data[j]) / (above.data[i] - below.data[i]);
      sum += slope * slope;
    }
  }
  return std::sqrt(sum);
}

// x (N, D) times w (D, d) plus b, as one head (1, 1, N, d).
Array project(const Array& x, const Array& w, const Array& b) {
  Array y({1, 1, x.shape[0], w.shape[1]});
  for (std::int64_t i = 0; i < x.shape[0]; ++i)
    for (std::int64_t e = 0; e < w.shape[1]; ++e) {
      double sum = b.data[static_cast<std::size_t>(e)];
      for (std::int64_t f = 0; f < x.shape[1]; ++f) sum += at(x, i, f) * at(w, f, e);
      at(y, 0, 0, i, e) = sum;
    }
  return y;
}

}  // namespace

long double phi(const std::string& name, long double s) {
  static const std::map<std::string, std::function<long double(long double)>> functions = {
      {"x", [](long double s) { return s; }},
      {"x2", [](long double s) { return s * s; }},
      {"x3", [](long double s) { return s * s * s; }},
      {"x^4", [](long double s) { return power(s, 4); }},
      {"x^5", [](long double s) { return power(s, 5); }},
      {"x^6", [](long double s) { return power(s, 6); }},
      {"x^7", [](long double s) { return power(s, 7); }},
      {"x^8", [](long double s) { return power(s, 8); }},
      {"x^9", [](long double s) { return power(s, 9); }},
      {"relu", [](long double s) { return s > 0 ? s : 0; }},
      {"elu", [](long double s) { return s > 0 ? s : std::expm1(s); }},
      {"gelu", [](long double s) { return s * std::erfc(-s / std::sqrt(2.0L)) / 2; }},
      {"tanh", [](long double s) { return std::tanh(s); }},
      {"exp", [](long double s) { return std::exp(s); }},
      {"exp_neg", [](long double s) { return std::exp(-s); }},
  };
  const auto found = functions.find(name);
  if (found == functions.end()) throw std::invalid_argument("the naive twin has no activation " + name);
  return found->second(s);
}

Array attention_map(const Array& q, const Array& k, const AttentionSpec& spec) {
  return map_of_scores(scores(q, k, spec), spec);
}

double attention_dropout_factor(const AttentionSpec& spec, std::int64_t heads, std::int64_t b, std::int64_t h,
                                std::int64_t i, std::int64_t j) {
  if (spec.dropout == 0) return 1;
  const std::uint32_t domain = 4;  // what "attention" is in the engine's key
  Philox philox{{static_cast<std::uint32_t>(spec.seed),
                 static_cast<std::uint32_t>(spec.seed >> 32) ^ (domain * std::uint32_t{0x85EBCA6B})},
                {static_cast<std::uint32_t>(j / 8), static_cast<std::uint32_t>(i),
                 static_cast<std::uint32_t>((spec.first_sample + b) * heads + h), spec.offset}};
  const int lane = static_cast<int>(j % 8);
  const std::uint32_t bits = (philox.word(lane / 2) >> (lane % 2 == 0 ? 0 : 16)) & 0xFFFF;
  const auto threshold = static_cast<std::uint32_t>(std::lround(spec.dropout * 65536));
  return bits >= threshold ? 65536.0 / (65536 - threshold) : 0;
}

Array attention(const Array& q, const Array& k, const Array& v, const AttentionSpec& spec) {
  const Array p = attention_map(q, k, spec);
  const std::int64_t heads = q.shape[1], d = q.shape[3];
  Array out({q.shape[0], q.shape[2], heads * d});
  for (std::int64_t b = 0; b < p.shape[0]; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t i = 0; i < p.shape[2]; ++i)
        for (std::int64_t j = 0; j < p.shape[3]; ++j) {
          const double weight = at(p, b, h, i, j) * attention_dropout_factor(spec, heads, b, h, i, j);
          for (std::int64_t e = 0; e < d; ++e) joined(out, b, i, h, e, d) += weight * at(v, b, h, j, e);
        }
  return out;
}

AttentionGradients attention_gradients(const Array& q, const Array& k, const Array& v, const AttentionSpec& spec,
                                       const Array& grad) {
  const Array s = scores(q, k, spec);
  const Array p = map_of_scores(s, spec);
  const std::int64_t heads = q.shape[1], d = q.shape[3], keys = k.shape[2];
  const double scale = scale_of(spec, d);
  Array g = grad;
  AttentionGradients result{Array(q.shape), Array(k.shape), Array(v.shape), spec.bias};
  result.bias.data.assign(spec.bias.data.size(), 0);
  std::vector<double> dp(static_cast<std::size_t>(keys)), ds(static_cast<std::size_t>(keys));
  for (std::int64_t b = 0; b < q.shape[0]; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t i = 0; i < q.shape[2]; ++i) {
        double inner = 0;
        for (std::int64_t j = 0; j < keys; ++j) {
          const double z = attention_dropout_factor(spec, heads, b, h, i, j);
          double sum = 0;
          for (std::int64_t e = 0; e < d; ++e) {
            const double upstream = joined(g, b, i, h, e, d);
            sum += upstream * at(v, b, h, j, e);
            at(result.v, b, h, j, e) += z * at(p, b, h, i, j) * upstream;
          }
          dp[static_cast<std::size_t>(j)] = z * sum;
          inner += at(p, b, h, i, j) * z * sum;
        }
        for (std::int64_t j = 0; j < keys; ++j) {
          double& slope = ds[static_cast<std::size_t>(j)];
          slope = 0;
          if (!allowed(spec, b, i, j)) continue;
          if (spec.phi == "softmax") {
            slope = at(p, b, h, i, j) * (dp[static_cast<std::size_t>(j)] - inner);
          } else {
            const long double score = at(s, b, h, i, j), step = 1e-9L * std::fmax(1.0L, std::fabs(score));
            const long double derivative = (phi(spec.phi, score + step) - phi(spec.phi, score - step)) / (2 * step);
            slope = dp[static_cast<std::size_t>(j)] * static_cast<double>(derivative) / spec.divisor;
          }
          for (std::int64_t e = 0; e < d; ++e) {
            at(result.q, b, h, i, e) += scale * slope * at(k, b, h, j, e);
            at(result.k, b, h, j, e) += scale * slope * at(q, b, h, i, e);
          }
          if (!spec.bias.shape.empty()) at(result.bias, b % spec.bias.shape[0], h, i, j) += slope;
        }
      }
  return result;
}

AttentionNorms attention_norms_by_differences(const Array& x, const Array& w_q, const Array& b_q, const Array& w_k,
                                              const Array& b_k, const AttentionSpec& spec) {
  const Array s = scores(project(x, w_q, b_q), project(x, w_k, b_k), spec);
  AttentionNorms norms;
  norms.a = norm(map_of_scores(s, spec));
  norms.j_s = jacobian_norm([&](const Array& changed) { return map_of_scores(changed, spec); }, s);
  norms.j_q =
      jacobian_norm([&](const Array& w) { return attention_map(project(x, w, b_q), project(x, w_k, b_k), spec); }, w_q);
  norms.j_k =
      jacobian_norm([&](const Array& w) { return attention_map(project(x, w_q, b_q), project(x, w, b_k), spec); }, w_k);
  return norms;
}

}  // namespace reference

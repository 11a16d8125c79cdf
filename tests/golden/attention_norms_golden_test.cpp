// The attention map and the norms of its Jacobians against torch's autograd: every case of the set's manifest.
#include <doctest/doctest.h>

#include "engine/factory.h"
#include "ops/attention.h"
#include "tests/golden/golden_files.h"
#include "tests/support/skip.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

// x (N, D) times w (D, d), as one head (1, 1, N, d).
Tensor project(const Tensor& x, const Tensor& w) {
  const std::vector<double> rows = values_of(x), weights = values_of(w);
  const auto n = static_cast<std::size_t>(x.size(0)), width = static_cast<std::size_t>(x.size(1)),
             d = static_cast<std::size_t>(w.size(1));
  std::vector<double> y(n * d);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t f = 0; f < width; ++f) {
      for (std::size_t e = 0; e < d; ++e) y[i * d + e] += rows[i * width + f] * weights[f * d + e];
    }
  }
  return Tensor::from_vector(y, {1, 1, x.size(0), w.size(1)});
}

}  // namespace

TEST_CASE("attention norms against torch's Jacobians") {
  if (golden_folder().empty()) return skip("sample data missing: POLYGRAD_GOLDEN is not set");
  const std::string folder = golden_folder() + "/ops";
  int checked = 0;
  for (const GoldenCase& row : read_manifest(folder + "/manifest.tsv")) {
    if (row.op != "attention_norms") continue;
    CAPTURE(row.name);
    const SafetensorsFile file(folder + "/" + row.file);
    const auto load = [&](const char* name) { return file.load(row.name + "/" + name); };
    const Tensor x = load("x");
    const Tensor q = project(x, load("wq")), k = project(x, load("wk"));
    AttentionParams params;
    params.phi = parse_activation(row.attributes.at("phi"));
    params.divisor = row.number("c", 1);
    const std::vector<double> p = values_of(load("p"));
    CHECK(largest_difference(values_of(attention_map(q, k, params)), p) <= 1e-10 * largest(p));
    const Tensor batch = Tensor::from_vector(values_of(x), {1, x.size(0), x.size(1)});
    const AttentionNorms norms = attention_norms(batch, q, k, params);
    const std::pair<const char*, Tensor> expected[] = {
        {"norm_P", norms.a}, {"norm_J_S", norms.j_s}, {"norm_J_Q", norms.j_q}, {"norm_J_K", norms.j_k}};
    for (const auto& [name, got] : expected) {
      CAPTURE(name);
      const double want = values_of(load(name)).at(0);
      CHECK(std::abs(got.item<double>() - want) <= 1e-10 * want);
    }
    ++checked;
  }
  CHECK(checked > 0);
}

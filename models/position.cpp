#include "models/position.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

namespace {

// The inputs that one output is made of, from `first` on.
struct Taps {
  std::int64_t first = 0;
  std::vector<double> weights;  // of sum 1
};

// Keys' cubic convolution with a = -0.5.
double cubic(double x) {
  x = std::abs(x);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  if (x < 2) return ((-0.5 * x + 2.5) * x - 4) * x + 2;
  return 0;
}

// Along one axis. A grid that shrinks widens the filter, so that every input counts.
std::vector<Taps> make_taps(std::int64_t in, std::int64_t out) {
  const double scale = static_cast<double>(in) / static_cast<double>(out), width = std::max(scale, 1.0);
  std::vector<Taps> all;
  for (std::int64_t i = 0; i < out; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    Taps taps;
    taps.first = std::max<std::int64_t>(static_cast<std::int64_t>(centre - 2 * width + 0.5), 0);
    const std::int64_t end = std::min(static_cast<std::int64_t>(centre + 2 * width + 0.5), in);
    double sum = 0;
    for (std::int64_t k = taps.first; k < end; ++k) {
      taps.weights.push_back(cubic((static_cast<double>(k) - centre + 0.5) / width));
      sum += taps.weights.back();
    }
    for (double& weight : taps.weights) weight /= sum;
    all.push_back(std::move(taps));
  }
  return all;
}

}  // namespace

std::string to_string(const Grid& grid) { return format("{}x{}", grid[0], grid[1]); }

Grid parse_grid(const std::string& text) {
  const auto whole = [](const std::string& part) -> std::int64_t {
    if (part.empty() || part.size() > 6 || part.find_first_not_of("0123456789") != std::string::npos) return 0;
    return std::stoll(part);
  };
  const std::size_t at = text.find('x');
  const Grid grid = {whole(text.substr(0, at)), whole(at == std::string::npos ? text : text.substr(at + 1))};
  if (grid[0] < 1 || grid[1] < 1) throw ConfigError(format("[grid] '{}'; expected rows x columns, like 14x16", text));
  return grid;
}

Tensor resize_positions(const Tensor& table, std::int64_t prefix, const Grid& from, const Grid& to) {
  const std::int64_t tokens = prefix + from[0] * from[1];
  if (table.dim() != 3 || table.size(0) != 1 || table.size(1) != tokens) {
    throw ShapeError(format("[resize_positions] a table {}; expected (1, {} + {}, dim)", to_string(table.shape()),
                            prefix, to_string(from)));
  }
  if (from == to) return table;
  const std::int64_t dim = table.size(2);
  const std::vector<double> in = table.detach().to(DType::f64).to_vector<double>();
  std::vector<double> out(static_cast<std::size_t>((prefix + to[0] * to[1]) * dim));
  std::copy_n(in.begin(), prefix * dim, out.begin());
  const std::vector<Taps> down = make_taps(from[0], to[0]), across = make_taps(from[1], to[1]);
  for (std::int64_t y = 0; y < to[0]; ++y) {
    for (std::int64_t x = 0; x < to[1]; ++x) {
      const Taps &rows = down[static_cast<std::size_t>(y)], &columns = across[static_cast<std::size_t>(x)];
      double* const place = &out[static_cast<std::size_t>((prefix + y * to[1] + x) * dim)];
      for (std::size_t r = 0; r < rows.weights.size(); ++r) {
        for (std::size_t c = 0; c < columns.weights.size(); ++c) {
          const std::int64_t row = rows.first + static_cast<std::int64_t>(r);
          const std::int64_t column = columns.first + static_cast<std::int64_t>(c);
          const double weight = rows.weights[r] * columns.weights[c];
          const double* const source = &in[static_cast<std::size_t>((prefix + row * from[1] + column) * dim)];
          for (std::int64_t d = 0; d < dim; ++d) place[d] += weight * source[d];
        }
      }
    }
  }
  return Tensor::from_vector(out, {1, prefix + to[0] * to[1], dim}).to(table.dtype());
}

}  // namespace polygrad

// inspect FILE, inspect FILE --compare OTHER.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>

#include "apps/inspect/inspect.h"
#include "apps/training/run_folder.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/safetensors.h"

namespace polygrad::inspect {

namespace {

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

struct Stats {
  double smallest = INFINITY, largest = -INFINITY, mean = 0, deviation = 0;
  std::int64_t finite = 0, not_finite = 0;
};

Stats stats_of(const Tensor& tensor) {
  Stats stats;
  const std::vector<double> values = tensor.to(DType::f64).to_vector<double>();
  for (const double value : values) {
    if (!std::isfinite(value)) {
      ++stats.not_finite;
      continue;
    }
    ++stats.finite;
    stats.smallest = std::min(stats.smallest, value);
    stats.largest = std::max(stats.largest, value);
    stats.mean += value;
  }
  const double count = static_cast<double>(std::max<std::int64_t>(stats.finite, 1));
  stats.mean /= count;
  for (const double value : values) {
    if (std::isfinite(value)) stats.deviation += (value - stats.mean) * (value - stats.mean);
  }
  stats.deviation = std::sqrt(stats.deviation / count);
  return stats;
}

std::string stats_text(const Tensor& tensor) {
  const Stats stats = stats_of(tensor);
  if (stats.finite == 0) return format("  no finite element of {}", stats.not_finite);
  std::string text = format("  min {:.6g}  max {:.6g}  mean {:.6g}  std {:.6g}", stats.smallest, stats.largest,
                            stats.mean, stats.deviation);
  if (stats.not_finite > 0) text += format("  not finite: {}", stats.not_finite);
  return text;
}

// How two tensors of one dtype and shape differ; "" where all bits are equal.
std::string difference(const Tensor& a, const Tensor& b) {
  const std::size_t bytes = static_cast<std::size_t>(a.numel()) * dtype_size(a.dtype());
  if (bytes == 0 || std::memcmp(a.ref().data, b.ref().data, bytes) == 0) return "";
  const std::vector<double> x = a.to(DType::f64).to_vector<double>(), y = b.to(DType::f64).to_vector<double>();
  std::int64_t differing = 0;
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    ++differing;
    const double distance = std::abs(x[i] - y[i]);
    largest = std::isnan(distance) ? INFINITY : std::max(largest, distance);
  }
  if (differing == 0) return "the values are equal, the bits are not (signed zeros or NaNs)";
  return format("{} of {} elements differ, by up to {:.6g}", differing, x.size(), largest);
}

}  // namespace

std::string weights_file(const std::string& path) {
  std::error_code error;  // what can't be looked at is no folder here; opening it as a file says why
  if (!std::filesystem::is_directory(path, error)) return path;
  if (std::filesystem::exists(path + "/model.safetensors", error)) return path + "/model.safetensors";
  return find_checkpoint(path) + "/model.safetensors";
}

void show_file(const std::string& path, bool stats) {
  const SafetensorsFile file(weights_file(path));
  std::size_t width = 4;
  for (const SafetensorsEntry& entry : file.entries()) width = std::max(width, entry.name.size());
  std::int64_t elements = 0;
  for (const SafetensorsEntry& entry : file.entries()) {
    elements += entry.shape.numel();
    std::string line = format("{:<{}}  {:<5} {}", entry.name, width, entry.stored_dtype, to_string(entry.shape));
    if (stats) line += stats_text(file.load(entry.name));
    print(line + "\n");
  }
  for (const auto& [key, value] : file.metadata()) print(format("metadata {}: {}\n", key, value));
  print(format("{}: {} tensors, {} elements\n", file.path(), file.entries().size(), elements));
}

bool compare_files(const std::string& first, const std::string& second) {
  const SafetensorsFile a(weights_file(first)), b(weights_file(second));
  std::size_t differences = 0;
  const auto report = [&](const std::string& name, const std::string& what) {
    ++differences;
    print(format("{}: {}\n", name, what));
  };
  std::set<std::string> in_b;
  for (const SafetensorsEntry& entry : b.entries()) in_b.insert(entry.name);
  for (const SafetensorsEntry& entry : a.entries()) {
    if (in_b.erase(entry.name) == 0) {
      report(entry.name, "only in " + a.path());
      continue;
    }
    const auto other = std::find_if(b.entries().begin(), b.entries().end(),
                                    [&](const SafetensorsEntry& candidate) { return candidate.name == entry.name; });
    if (entry.shape != other->shape || entry.stored_dtype != other->stored_dtype) {
      report(entry.name, format("{} {} against {} {}", entry.stored_dtype, to_string(entry.shape), other->stored_dtype,
                                to_string(other->shape)));
    } else if (const std::string what = difference(a.load(entry.name), b.load(entry.name)); !what.empty()) {
      report(entry.name, what);
    }
  }
  for (const std::string& name : in_b) report(name, "only in " + b.path());
  if (differences == 0) print(format("equal: {} tensors, every bit\n", a.entries().size()));
  return differences == 0;
}

}  // namespace polygrad::inspect

#include "apps/bench/report.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "engine/format.h"
#include "engine/parallel.h"

namespace polygrad::bench {

Report::Report(const std::string& bench, Device device) : text_("{\"bench\":" + nlohmann::json(bench).dump()) {
  const bool gpu = device.type == DeviceType::cuda;
  add("gemm", gpu ? "cublaslt" : to_string(gemm_provider()));
  add("threads", static_cast<std::int64_t>(num_threads()));
  if (gpu) add("device", device_name(device));
}

Report& Report::append(const std::string& key, const std::string& json) {
  text_ += "," + nlohmann::json(key).dump() + ":" + json;
  return *this;
}
Report& Report::add(const std::string& key, const std::string& value) {
  return append(key, nlohmann::json(value).dump());
}
Report& Report::add(const std::string& key, std::int64_t value) { return append(key, format("{}", value)); }
Report& Report::add(const std::string& key, bool value) { return append(key, value ? "true" : "false"); }
Report& Report::add(const std::string& key, double value) {
  return append(key, std::isfinite(value) ? format("{:.6g}", value) : "null");
}
Report& Report::add(const std::string& key, const std::vector<std::int64_t>& value) {
  return append(key, nlohmann::json(value).dump());
}
Report& Report::add(const std::string& key, const std::vector<double>& value) {
  return append(key, nlohmann::json(value).dump());
}
Report& Report::add(const Paired& paired) {
  return add("gflops", paired.gflops).add("ceiling_gflops", paired.ceiling_gflops).add("ratio", paired.ratio);
}

Precision precision_of(const char* flag, const std::string& name, Device device) {
  std::string obstacle;
  try {
    const Precision precision = precision_named(name);
    obstacle = precision_obstacle(precision, device);
    if (obstacle.empty()) return precision;
  } catch (const ValueError& error) {
    obstacle = error.what();
  }
  throw ValueError(format("{} {}: {}", flag, name, obstacle));
}

void say(bool quiet, const std::string& text) {
  if (!quiet) std::fprintf(stderr, "%s\n", text.c_str());
}

}  // namespace polygrad::bench

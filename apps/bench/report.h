// The JSON lines of polygrad_bench: keys in the order they were added, numbers rounded for reading.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/bench/ceiling.h"
#include "engine/device.h"
#include "ops/precision.h"

namespace polygrad::bench {

// A line that starts with {"bench": name, "gemm": provider, "threads": n, ...}; of a GPU: "device": its name, too.
class Report {
 public:
  explicit Report(const std::string& bench, Device device = {});
  Report& add(const std::string& key, const std::string& value);
  Report& add(const std::string& key, const char* value) { return add(key, std::string(value)); }
  Report& add(const std::string& key, std::int64_t value);
  Report& add(const std::string& key, bool value);
  Report& add(const std::string& key, double value);  // six digits; null where it is not finite
  Report& add(const std::string& key, const std::vector<std::int64_t>& value);
  Report& add(const std::string& key,
              const std::vector<double>& value);  // as many digits as tell each from its neighbours
  Report& add(const Paired& paired);              // gflops, ceiling_gflops, ratio
  std::string line() const { return text_ + "}"; }

 private:
  Report& append(const std::string& key, const std::string& json);
  std::string text_;
};

// The precision of that name; throws ValueError, naming the flag, for one that can't be had there.
Precision precision_of(const char* flag, const std::string& name, Device device = {});

// One line on stderr for people, unless `quiet`.
void say(bool quiet, const std::string& text);

}  // namespace polygrad::bench

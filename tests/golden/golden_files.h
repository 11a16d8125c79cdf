// Reading a set of golden files: expected values that other, public code computed. The tests take whatever the folder
// POLYGRAD_GOLDEN holds, so another set of the same layout runs too; its README says what each file is.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/safetensors.h"

namespace polygrad::testing {

// The folder, or "" where the variable is not set.
inline std::string golden_folder() {
  const char* folder = std::getenv("POLYGRAD_GOLDEN");
  return folder == nullptr ? "" : folder;
}

using TensorMap = std::map<std::string, Tensor>;

// NAME.safetensors, or all of NAME-1of2.safetensors, NAME-2of2.safetensors, ...
inline TensorMap read_golden(const std::string& folder, const std::string& name) {
  TensorMap result;
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    const bool whole = file == name + ".safetensors";
    const bool part = file.starts_with(name + "-") && file.ends_with(".safetensors") &&
                      file.substr(name.size() + 1).find("of") != std::string::npos;
    if (whole || part) files.push_back(entry.path().string());
  }
  if (files.empty()) throw std::runtime_error("no " + name + ".safetensors in " + folder);
  for (const std::string& file : files) {
    for (auto& [tensor_name, tensor] : load_safetensors(file)) result.emplace(tensor_name, tensor);
  }
  return result;
}

// One line of ops/manifest.tsv.
struct GoldenCase {
  std::string name, op, file;
  std::map<std::string, std::string> attributes;

  double number(const std::string& key, double fallback) const {
    const auto found = attributes.find(key);
    return found == attributes.end() ? fallback : std::stod(found->second);
  }
  std::int64_t integer(const std::string& key, std::int64_t fallback) const {
    return static_cast<std::int64_t>(number(key, static_cast<double>(fallback)));
  }
};

inline std::vector<GoldenCase> read_manifest(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<GoldenCase> cases;
  std::string line;
  std::getline(file, line);  // the head
  while (std::getline(file, line)) {
    std::istringstream columns(line);
    GoldenCase row;
    std::string attributes, word;
    std::getline(columns, row.name, '\t');
    std::getline(columns, row.op, '\t');
    std::getline(columns, row.file, '\t');
    std::getline(columns, attributes, '\t');
    for (std::istringstream words(attributes); words >> word;) {
      const std::size_t equal = word.find('=');
      row.attributes[word.substr(0, equal)] = equal == std::string::npos ? "" : word.substr(equal + 1);
    }
    cases.push_back(std::move(row));
  }
  return cases;
}

// The elements as doubles.
inline std::vector<double> values_of(const Tensor& tensor) {
  return tensor.detach().to(DType::f64).to_vector<double>();
}

inline double largest(const std::vector<double>& values) {
  double result = 0;
  for (const double value : values) result = std::max(result, std::abs(value));
  return result;
}

// The largest |a - b|; infinite where the sizes differ or one is not a number.
inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double result = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= result)) result = std::isnan(difference) ? INFINITY : difference;
  }
  return result;
}

}  // namespace polygrad::testing

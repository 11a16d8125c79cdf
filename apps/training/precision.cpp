#include "apps/training/precision.h"

#include "engine/error.h"

namespace polygrad {

Precision parse_precision(const std::string& text, Device device) {
  Precision precision;
  try {
    precision = precision_named(text);
  } catch (const ValueError& error) {
    throw ConfigError(std::string("[config] train.precision: ") + error.what());
  }
  const std::string obstacle = precision_obstacle(precision, device);
  if (!obstacle.empty()) throw ConfigError("[config] train.precision: " + obstacle);
  return precision;
}

}  // namespace polygrad

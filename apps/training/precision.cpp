#include "apps/training/precision.h"

#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

Precision parse_precision(const std::string& text) {
  if (text == "f32") return Precision::f32;
  if (text == "bf16" || text == "f16") {
    throw ConfigError(
        format("[config] train.precision: {} products are not available in this version; expected f32", text));
  }
  throw ConfigError(format("[config] train.precision: \"{}\" is no precision; expected f32", text));
}

const char* to_string(Precision) { return "f32"; }

}  // namespace polygrad

// Precision: in which dtype the matrix products of a training run are computed (train.precision).
#pragma once

#include <string>

namespace polygrad {

enum class Precision { f32 };

// Throws ConfigError for a word that is no precision, and for one that this build can't compute in.
Precision parse_precision(const std::string& text);
const char* to_string(Precision precision);

}  // namespace polygrad

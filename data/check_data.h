// check_data: a look at every picture before a training run meets it.
//
// Where this stands: above catalog.h; `--check-data` prints its report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/catalog.h"

namespace polygrad {

struct DataCheck {
  std::int64_t pictures = 0;     // of all parts
  std::vector<std::string> bad;  // one message for each that can't be used
  std::int64_t bad_of[6] = {};   // by ImageFault
  // Pictures with the same pixels as an earlier one: in the same part and class, under another class, in another part.
  std::int64_t same_class = 0, other_class = 0, other_part = 0;
  std::vector<double> mean, stddev;  // of the training pictures, pixels in [0, 1]
  std::string report;                // everything, for people
};

// Decodes every picture, with the threads of parallel_for.
DataCheck check_data(const DataParts& parts);

}  // namespace polygrad

// Pictures for people: what the training sees, and what an evaluation confuses.
//
// Where this stands: above data/png.h, beside evaluate.h. Each returns a (3, H, W) u8 image for write_png.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/training/config.h"
#include "apps/training/experiment.h"

namespace polygrad {

// `counts` is K x K, rows the labels, columns the predictions: each row's share as a shade, white for none. From 4097
// classes on neighbours share a cell.
Tensor confusion_picture(const std::vector<std::int64_t>& counts, const std::vector<std::string>& names);

// The first batch of epoch 0 exactly as the model gets it, mixing included, turned back into colours; under each image
// its label, or both labels and the first one's share. At most `images` of them (ValueError below 1).
Tensor contact_sheet(const Config& config, const Experiment& experiment, std::int64_t images = 32);

}  // namespace polygrad

// Pictures for people: what the training sees, what an evaluation confuses, what attention looks at.
//
// Where this stands: above data/png.h, beside evaluate.h. Each returns a (3, H, W) u8 image for write_png.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/training/config.h"
#include "apps/training/experiment.h"

namespace polygrad {

// `counts` is K x K, rows the labels, columns the predictions: each row's share as a shade, white for none, and of up
// to 22 classes in percent. Classes are numbered from 0 at both axes, up to 40 are named. From 4097 classes on
// neighbours share a cell.
Tensor confusion_picture(const std::vector<std::int64_t>& counts, const std::vector<std::string>& names);

// The first batch of epoch 0 exactly as the model gets it, mixing included, turned back into colours; under each image
// its label, or both labels and the first one's share. At most `images` of them (ValueError below 1).
Tensor contact_sheet(const Config& config, const Experiment& experiment, std::int64_t images = 32);

// What attention makes of each patch, over the pictures themselves: `input` is a batch as the model takes it, `values`
// f32 (B, rows, columns) of as many pictures. Each picture stands above itself in grey with the patches coloured: red
// for positive numbers, blue for negative ones, the deeper the nearer to the picture's largest magnitude, which is
// written below with the smallest and the largest number.
Tensor attention_overlay(const Tensor& input, const Tensor& values, const Preprocessing& preprocessing);

}  // namespace polygrad

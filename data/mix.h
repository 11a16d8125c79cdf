// Mixup and CutMix of a batch, and the soft targets they (and label smoothing) need.
//
// Where this stands: after the loader, before the model; called in the trainer's thread with a generator that the
// caller names by seed and step, so the loader's threads have no part in it. Source: timm's batch mode;
// mixup arXiv 1710.09412, CutMix arXiv 1905.04899.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/generator.h"
#include "engine/tensor.h"

namespace polygrad {

struct MixOptions {
  double mixup = 0;                 // alpha of Beta(alpha, alpha); 0: off
  double cutmix = 0;                // likewise
  double switch_probability = 0.5;  // of CutMix where both are on
  double label_smoothing = 0;       // epsilon: off = epsilon / K, on = 1 - epsilon + off
  std::int64_t classes = 0;         // K
  bool enabled() const { return mixup > 0 || cutmix > 0; }
};

// What was drawn for one batch. Partner of sample i is sample B - 1 - i; a middle sample is its own partner.
struct MixPlan {
  double lambda = 1;  // the sample's own share (CutMix: 1 - area of the box / area of the image)
  bool cutmix = false;
  std::int64_t top = 0, bottom = 0, left = 0, right = 0;  // CutMix's box, half open
};

// The generator of one micro-batch: a stream of its own for each (seed, optimizer step, micro-batch within the step).
Generator mix_generator(std::uint64_t seed, std::int64_t step, std::int64_t micro_batch = 0);

// Draws lambda, the kind and the box for images of height x width. Nothing is on: lambda 1. Throws ValueError for
// negative options or a probability outside [0, 1].
MixPlan draw_mix(const MixOptions& options, std::int64_t height, std::int64_t width, Generator& generator);
// CutMix's plan with its box round (y, x): sides sqrt(1 - lambda) of the image's, cut off at the border; lambda becomes
// what is left of the area.
MixPlan cutmix_plan(double lambda, std::int64_t height, std::int64_t width, std::int64_t y, std::int64_t x);

// In place on f32 (B, C, H, W), contiguous, outside the graph (ShapeError, DTypeError, ValueError). Mixup: x <- lambda
// x + (1 - lambda) x_partner; CutMix: the box is the partner's. Any B, also odd and 1. The same bits for any number of
// threads.
void mix_images(Tensor& images, const MixPlan& plan);

// f32 (B, K): lambda * target(label) + (1 - lambda) * target(label of the partner), each row sums to 1. labels is i64
// (B). Throws IndexError for a label outside [0, K), ValueError for a label_smoothing outside [0, 1).
Tensor mix_targets(const Tensor& labels, const MixPlan& plan, std::int64_t classes, double label_smoothing);

}  // namespace polygrad

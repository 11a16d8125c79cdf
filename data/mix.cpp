#include "data/mix.h"

#include <algorithm>
#include <cmath>

#include "engine/error.h"
#include "engine/format.h"
#include "engine/parallel.h"

namespace polygrad {

namespace {

constexpr std::uint64_t kMixPurpose = 0x6D6978;  // keeps these streams apart from the samples'
constexpr std::int64_t kElementsPerChunk = 1 << 15;

void check_options(const MixOptions& options) {
  if (!(options.mixup >= 0) || !(options.cutmix >= 0)) {
    throw ValueError(format("[mix] mixup {} and cutmix {}; expected numbers >= 0", options.mixup, options.cutmix));
  }
  if (!(options.switch_probability >= 0 && options.switch_probability <= 1)) {
    throw ValueError(format("[mix] switch probability {}; expected 0 to 1", options.switch_probability));
  }
}

}  // namespace

Generator mix_generator(std::uint64_t seed, std::int64_t step, std::int64_t micro_batch) {
  return Generator(derive_seed(derive_seed(seed, kMixPurpose), static_cast<std::uint64_t>(step),
                               static_cast<std::uint64_t>(micro_batch)));
}

MixPlan draw_mix(const MixOptions& options, std::int64_t height, std::int64_t width, Generator& generator) {
  check_options(options);
  MixPlan plan;
  if (!options.enabled()) return plan;
  const FloatingPointGuard floating_point;
  plan.cutmix = options.cutmix > 0;
  if (options.mixup > 0 && options.cutmix > 0) plan.cutmix = generator.bernoulli(options.switch_probability);
  const double alpha = plan.cutmix ? options.cutmix : options.mixup;
  plan.lambda = generator.beta(alpha, alpha);
  if (!plan.cutmix) return plan;
  const std::int64_t y = generator.integer(0, height), x = generator.integer(0, width);
  return cutmix_plan(plan.lambda, height, width, y, x);
}

MixPlan cutmix_plan(double lambda, std::int64_t height, std::int64_t width, std::int64_t y, std::int64_t x) {
  MixPlan plan;
  plan.cutmix = true;
  const double ratio = std::sqrt(1 - lambda);
  const auto half_height = static_cast<std::int64_t>(static_cast<double>(height) * ratio) / 2;
  const auto half_width = static_cast<std::int64_t>(static_cast<double>(width) * ratio) / 2;
  plan.top = std::max<std::int64_t>(y - half_height, 0);
  plan.bottom = std::min(y + half_height, height);
  plan.left = std::max<std::int64_t>(x - half_width, 0);
  plan.right = std::min(x + half_width, width);
  const auto area = static_cast<double>((plan.bottom - plan.top) * (plan.right - plan.left));
  plan.lambda = 1 - area / static_cast<double>(height * width);
  return plan;
}

void mix_images(Tensor& images, const MixPlan& plan) {
  if (images.dim() != 4) {
    throw ShapeError(format("[mix_images] expected images (batch, channels, height, width), got {}", describe(images)));
  }
  if (images.dtype() != DType::f32) throw DTypeError(format("[mix_images] expected f32, got {}", describe(images)));
  if (!images.is_contiguous() || images.requires_grad()) {
    throw ValueError("[mix_images] expected contiguous images outside the autograd graph");
  }
  const std::int64_t batch = images.size(0), height = images.size(2), width = images.size(3);
  if (plan.cutmix && (plan.top < 0 || plan.left < 0 || plan.bottom > height || plan.right > width)) {
    throw ValueError(format("[mix_images] the box [{}, {}) x [{}, {}) does not lie in {} x {}", plan.top, plan.bottom,
                            plan.left, plan.right, height, width));
  }
  if (plan.lambda == 1) return;
  const std::int64_t sample = images.size(1) * height * width;
  const std::int64_t pairs_per_chunk = std::max<std::int64_t>(1, kElementsPerChunk / std::max<std::int64_t>(sample, 1));
  float* x = images.data<float>();
  const auto own = static_cast<float>(plan.lambda), other = static_cast<float>(1 - plan.lambda);
  // Each pair is read and written together; the middle sample of an odd batch is its own partner and stays as it is.
  parallel_for(0, batch / 2, pairs_per_chunk, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t pair = begin; pair < end; ++pair) {
      float* a = x + pair * sample;
      float* b = x + (batch - 1 - pair) * sample;
      if (!plan.cutmix) {
        for (std::int64_t i = 0; i < sample; ++i) {
          const float first = a[i], second = b[i];
          a[i] = own * first + other * second;
          b[i] = own * second + other * first;
        }
        continue;
      }
      for (std::int64_t c = 0; c < images.size(1); ++c) {
        for (std::int64_t row = plan.top; row < plan.bottom; ++row) {
          const std::int64_t line = (c * height + row) * width;
          std::swap_ranges(a + line + plan.left, a + line + plan.right, b + line + plan.left);
        }
      }
    }
  });
}

Tensor mix_targets(const Tensor& labels, const MixPlan& plan, std::int64_t classes, double label_smoothing) {
  if (labels.dim() != 1) throw ShapeError(format("[mix_targets] expected labels (batch), got {}", describe(labels)));
  if (classes < 1 || !(label_smoothing >= 0 && label_smoothing < 1)) {
    throw ValueError(format("[mix_targets] {} classes, label smoothing {}; expected at least 1, and 0 <= smoothing < 1",
                            classes, label_smoothing));
  }
  const auto label = labels.to_vector<std::int64_t>();
  const auto batch = static_cast<std::int64_t>(label.size());
  for (std::int64_t i = 0; i < batch; ++i) {
    const std::int64_t k = label[static_cast<std::size_t>(i)];
    if (k < 0 || k >= classes) {
      throw IndexError(format("[mix_targets] label {} of sample {} is outside the {} classes", k, i, classes));
    }
  }
  Tensor targets = Tensor::empty(Shape{batch, classes});
  float* row = targets.data<float>();
  const double off = label_smoothing / static_cast<double>(classes), extra = 1 - label_smoothing;
  for (std::int64_t i = 0; i < batch; ++i, row += classes) {
    const std::int64_t own = label[static_cast<std::size_t>(i)], other = label[static_cast<std::size_t>(batch - 1 - i)];
    std::fill(row, row + classes, static_cast<float>(off));
    if (own == other) {
      row[own] = static_cast<float>(extra + off);
    } else {
      row[own] = static_cast<float>(plan.lambda * extra + off);
      row[other] = static_cast<float>((1 - plan.lambda) * extra + off);
    }
  }
  return targets;
}

}  // namespace polygrad

#include "data/sampler.h"

#include <algorithm>
#include <numeric>

#include "engine/error.h"
#include "engine/format.h"
#include "engine/generator.h"

namespace polygrad {

namespace {
// Keep the shuffles' streams apart from the samples'.
constexpr std::uint64_t kOrderPurpose = 0x6F72646572, kBucketPurpose = 0x6275636B6574;
}  // namespace

Sampler::Sampler(const SamplerOptions& options, std::vector<std::int32_t> lengths)
    : options_(options), lengths_(std::move(lengths)) {
  if (options.size < 1) throw ValueError("[sampler] the data set is empty");
  if (options.batch_size < 1) {
    throw ValueError(format("[sampler] batch size {}; expected at least 1", options.batch_size));
  }
  if (options.world < 1 || options.rank < 0 || options.rank >= options.world) {
    throw ValueError(format("[sampler] rank {} of {}; expected 0 <= rank < world", options.rank, options.world));
  }
  if (options.repeats < 1) throw ValueError(format("[sampler] repeats {}; expected at least 1", options.repeats));
  constexpr std::int64_t kRound = 256;
  length_ = options.size;
  if (options.repeats > 1 && length_ >= kRound) length_ -= length_ % kRound;
  const std::int64_t global = options.batch_size * options.world;
  batches_ = options.drop_last ? length_ / global : (length_ - 1) / global + 1;
  if (batches_ == 0) {
    throw ValueError(format("[sampler] {} samples do not fill one batch of {}, and incomplete ones are dropped",
                            options.size, global));
  }
  if (options.bucket < 0 || (options.bucket > 0 && std::ssize(lengths_) != options.size)) {
    throw ValueError(
        format("[sampler] buckets of {} batches with the lengths of {} of {} samples; expected all of them",
               options.bucket, lengths_.size(), options.size));
  }
}

std::int64_t Sampler::samples_per_epoch() const {
  return options_.drop_last ? batches_ * options_.batch_size * options_.world : length_;
}

std::vector<std::int64_t> Sampler::order(std::int64_t epoch) const {
  std::vector<std::int64_t> order;
  if (options_.shuffle) {
    Generator generator(derive_seed(options_.seed, kOrderPurpose, static_cast<std::uint64_t>(epoch)));
    order = generator.permutation(options_.size);
    if (options_.bucket > 0) sort_buckets(order, epoch);
  } else {
    order.resize(static_cast<std::size_t>(options_.size));
    std::iota(order.begin(), order.end(), std::int64_t{0});
  }
  if (options_.repeats == 1) return order;
  std::vector<std::int64_t> repeated;
  for (std::int64_t i = 0; i < length_; ++i) repeated.push_back(order[static_cast<std::size_t>(i / options_.repeats)]);
  return repeated;
}

void Sampler::sort_buckets(std::vector<std::int64_t>& order, std::int64_t epoch) const {
  const std::int64_t global = options_.batch_size * options_.world, span = global * options_.bucket;
  const auto longer = [&](std::int64_t a, std::int64_t b) {
    return lengths_[static_cast<std::size_t>(a)] > lengths_[static_cast<std::size_t>(b)];
  };
  Generator generator(derive_seed(options_.seed, kBucketPurpose, static_cast<std::uint64_t>(epoch)));
  for (std::int64_t begin = 0; begin < options_.size; begin += span) {
    const std::int64_t end = std::min(begin + span, options_.size);
    std::stable_sort(order.begin() + begin, order.begin() + end, longer);
    // An incomplete last batch stays the last one.
    for (std::int64_t i = (end - begin) / global - 1; i > 0; --i) {
      const auto a = order.begin() + begin + i * global,
                 b = order.begin() + begin + generator.integer(0, i + 1) * global;
      if (a != b) std::swap_ranges(a, a + global, b);
    }
  }
}

Sampler::Range Sampler::range(std::int64_t batch) const {
  if (batch < 0 || batch >= batches_) {
    throw IndexError(format("[sampler] batch {} of {} in an epoch", batch, batches_));
  }
  const std::int64_t global = options_.batch_size * options_.world;
  const std::int64_t begin = batch * global;
  const std::int64_t count = std::min(global, length_ - begin);
  // For a full batch this is rank * batch_size; of an incomplete one the parts differ by at most one sample.
  return {begin + options_.rank * count / options_.world, begin + (options_.rank + 1) * count / options_.world};
}

DataPosition Sampler::normalized(DataPosition position) const {
  if (position.epoch < 0 || position.batch < 0) {
    throw ValueError(format("[sampler] epoch {}, batch {}; expected numbers >= 0", position.epoch, position.batch));
  }
  position.epoch += position.batch / batches_;
  position.batch %= batches_;
  return position;
}

}  // namespace polygrad

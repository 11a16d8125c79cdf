// Which samples are trained on and which are held out: seeded, disjoint, the same for every run with that seed.
//
// Where this stands: beside dataset.h. Read next: catalog.h, which applies it to a data set by name.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/dataset.h"

namespace polygrad {

// Positions in a data set, each list in ascending order.
struct Split {
  std::vector<std::int64_t> train, val;
};

// Holds `val_count` of `size` samples out, chosen by `seed`. With labels (one per sample), each class gives its share,
// to within one sample (largest remainders first, the smaller class id on ties). Throws ValueError unless
// 0 <= val_count < size (or both are 0) and labels.size() is 0 or size.
Split split_samples(std::int64_t size, std::int64_t val_count, std::uint64_t seed,
                    const std::vector<std::int64_t>& labels = {});

// min(count, list length) of the listed positions, chosen by `seed`, in ascending order. Throws ValueError for a
// negative count.
std::vector<std::int64_t> choose_samples(const std::vector<std::int64_t>& positions, std::int64_t count,
                                         std::uint64_t seed);

// Holds `fraction` of all samples of `base` out of those listed in `positions`; with `stratify`, each class gives its
// share. Both lists are positions in `base`. Throws ConfigError where no sample is left on a side.
Split hold_out(const Dataset& base, const std::vector<std::int64_t>& positions, double fraction, std::uint64_t seed,
               bool stratify);

// 0 ... size - 1.
std::vector<std::int64_t> all_positions(std::int64_t size);
// The listed samples of `base`, or `limit` of them chosen by `seed` (negative: all); `base` itself where that is all.
std::shared_ptr<const Dataset> part_of(const std::shared_ptr<const Dataset>& base, std::vector<std::int64_t> positions,
                                       std::int64_t limit, std::uint64_t seed);

}  // namespace polygrad

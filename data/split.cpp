#include "data/split.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "engine/error.h"
#include "engine/format.h"
#include "engine/generator.h"

namespace polygrad {

namespace {

// What a shuffle is for; mixed into its seed, so that two uses of one seed draw independently.
constexpr std::uint64_t kSplitPurpose = 0x73706C6974;
constexpr std::uint64_t kChoosePurpose = 0x63686F6F7365;

// The first `count` of a seeded shuffle of `positions`.
std::vector<std::int64_t> draw(const std::vector<std::int64_t>& positions, std::int64_t count, std::uint64_t seed) {
  Generator generator(seed);
  const auto order = generator.permutation(static_cast<std::int64_t>(positions.size()));
  std::vector<std::int64_t> drawn;
  drawn.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    drawn.push_back(positions[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])]);
  }
  return drawn;
}

// How many of the `val_count` held-out samples each group gives: its exact share rounded down, then one more for the
// largest remainders. Integers only.
std::vector<std::int64_t> shares(const std::vector<std::int64_t>& group_sizes, std::int64_t size,
                                 std::int64_t val_count) {
  std::vector<std::int64_t> share, remainder, by_remainder;
  std::int64_t given = 0;
  for (std::size_t g = 0; g < group_sizes.size(); ++g) {
    const __int128 exact = static_cast<__int128>(group_sizes[g]) * val_count;
    share.push_back(static_cast<std::int64_t>(exact / size));
    remainder.push_back(static_cast<std::int64_t>(exact % size));
    by_remainder.push_back(static_cast<std::int64_t>(g));
    given += share.back();
  }
  std::stable_sort(by_remainder.begin(), by_remainder.end(), [&](std::int64_t a, std::int64_t b) {
    return remainder[static_cast<std::size_t>(a)] > remainder[static_cast<std::size_t>(b)];
  });
  for (std::int64_t i = 0; i < val_count - given; ++i) {
    ++share[static_cast<std::size_t>(by_remainder[static_cast<std::size_t>(i)])];
  }
  return share;
}

}  // namespace

Split split_samples(std::int64_t size, std::int64_t val_count, std::uint64_t seed,
                    const std::vector<std::int64_t>& labels) {
  if (val_count < 0 || size < 0 || (val_count >= size && val_count > 0)) {
    throw ValueError(
        format("[split] can't hold {} of {} samples out; expected 0 <= held out < samples", val_count, size));
  }
  if (!labels.empty() && static_cast<std::int64_t>(labels.size()) != size) {
    throw ValueError(format("[split] {} labels for {} samples", labels.size(), size));
  }
  std::map<std::int64_t, std::vector<std::int64_t>> groups;  // one group where there are no labels
  for (std::int64_t i = 0; i < size; ++i) {
    groups[labels.empty() ? 0 : labels[static_cast<std::size_t>(i)]].push_back(i);
  }
  std::vector<std::int64_t> group_sizes;
  for (const auto& [label, positions] : groups) group_sizes.push_back(static_cast<std::int64_t>(positions.size()));
  const auto share = shares(group_sizes, std::max<std::int64_t>(size, 1), val_count);

  std::vector<bool> held_out(static_cast<std::size_t>(size), false);
  std::size_t g = 0;
  for (const auto& [label, positions] : groups) {
    const std::uint64_t group_seed = derive_seed(seed, kSplitPurpose, static_cast<std::uint64_t>(label));
    for (const std::int64_t i : draw(positions, share[g], group_seed)) held_out[static_cast<std::size_t>(i)] = true;
    ++g;
  }
  Split split;
  for (std::int64_t i = 0; i < size; ++i) {
    (held_out[static_cast<std::size_t>(i)] ? split.val : split.train).push_back(i);
  }
  return split;
}

std::vector<std::int64_t> choose_samples(const std::vector<std::int64_t>& positions, std::int64_t count,
                                         std::uint64_t seed) {
  if (count < 0) throw ValueError(format("[split] can't choose {} samples", count));
  count = std::min(count, static_cast<std::int64_t>(positions.size()));
  auto chosen = draw(positions, count, derive_seed(seed, kChoosePurpose));
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

Split hold_out(const Dataset& base, const std::vector<std::int64_t>& positions, double fraction, std::uint64_t seed,
               bool stratify) {
  const auto size = static_cast<std::int64_t>(positions.size());
  const auto held_out = static_cast<std::int64_t>(std::llround(fraction * static_cast<double>(base.size())));
  if (held_out < 1 || held_out >= size) {
    throw ConfigError(
        format("[data] data.val_fraction {} holds {} of {} training samples out; expected at least one on "
               "either side, because the best checkpoint is chosen on them",
               fraction, held_out, size));
  }
  std::vector<std::int64_t> labels;
  if (stratify) {
    for (const std::int64_t position : positions) labels.push_back(base.label(position));
  }
  Split split = split_samples(size, held_out, seed, labels);
  for (auto* list : {&split.train, &split.val}) {
    for (std::int64_t& position : *list) position = positions[static_cast<std::size_t>(position)];
  }
  return split;
}

std::vector<std::int64_t> all_positions(std::int64_t size) {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(size));
  std::iota(positions.begin(), positions.end(), std::int64_t{0});
  return positions;
}

std::shared_ptr<const Dataset> part_of(const std::shared_ptr<const Dataset>& base, std::vector<std::int64_t> positions,
                                       std::int64_t limit, std::uint64_t seed) {
  if (limit >= 0) positions = choose_samples(positions, limit, seed);
  if (static_cast<std::int64_t>(positions.size()) == base->size()) return base;
  return std::make_shared<Subset>(base, std::move(positions));
}

}  // namespace polygrad

// Held-out samples: how many, which, and never one of the training's.
#include "data/split.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "engine/error.h"

using namespace polygrad;

namespace {

std::vector<std::int64_t> count_labels(const std::vector<std::int64_t>& positions,
                                       const std::vector<std::int64_t>& labels, std::size_t classes) {
  std::vector<std::int64_t> counts(classes, 0);
  for (const std::int64_t i : positions) ++counts[static_cast<std::size_t>(labels[static_cast<std::size_t>(i)])];
  return counts;
}

}  // namespace

TEST_CASE("the parts are disjoint, complete, sorted and of the asked size") {
  for (const std::int64_t held_out : {0, 1, 17, 99}) {
    const Split split = split_samples(100, held_out, 3);
    CHECK(static_cast<std::int64_t>(split.val.size()) == held_out);
    CHECK(std::is_sorted(split.val.begin(), split.val.end()));
    std::vector<std::int64_t> all = split.train;
    all.insert(all.end(), split.val.begin(), split.val.end());
    std::sort(all.begin(), all.end());
    for (std::int64_t i = 0; i < 100; ++i) CHECK(all[static_cast<std::size_t>(i)] == i);
  }
}

TEST_CASE("the seed chooses, and only the seed") {
  CHECK(split_samples(1000, 100, 5).val == split_samples(1000, 100, 5).val);
  CHECK(split_samples(1000, 100, 5).val != split_samples(1000, 100, 6).val);
  // Not just a block: of 100 of 1000 samples, about 50 lie in the first half.
  const Split split = split_samples(1000, 100, 5);
  const auto low = std::count_if(split.val.begin(), split.val.end(), [](std::int64_t i) { return i < 500; });
  CHECK(low > 30);
  CHECK(low < 70);
}

TEST_CASE("with labels each class gives its share, to within one sample") {
  // 60, 30 and 10 samples in a scrambled order.
  std::vector<std::int64_t> labels;
  for (int i = 0; i < 100; ++i) labels.push_back(i % 10 == 0 ? 2 : i % 10 <= 3 ? 1 : 0);
  CHECK(count_labels(split_samples(100, 10, 1, labels).val, labels, 3) == std::vector<std::int64_t>{6, 3, 1});
  // 15 held out: 9, 4.5 and 1.5; the remainders tie, the smaller class id gets the sample.
  CHECK(count_labels(split_samples(100, 15, 1, labels).val, labels, 3) == std::vector<std::int64_t>{9, 5, 1});
}

TEST_CASE("each class is drawn for itself") {
  std::vector<std::int64_t> labels, even, odd;
  for (int i = 0; i < 200; ++i) labels.push_back(i % 2);
  for (const std::int64_t i : split_samples(200, 40, 1, labels).val) (i % 2 == 0 ? even : odd).push_back(i / 2);
  CHECK(even.size() == 20);
  CHECK(even != odd);
}

TEST_CASE("chosen samples: a sorted part of the list, all of it where it is short") {
  const std::vector<std::int64_t> positions = {3, 5, 8, 13, 21, 34};
  const auto chosen = choose_samples(positions, 3, 7);
  CHECK(chosen.size() == 3);
  CHECK(std::is_sorted(chosen.begin(), chosen.end()));
  for (const std::int64_t i : chosen) CHECK(std::count(positions.begin(), positions.end(), i) == 1);
  CHECK(choose_samples(positions, 3, 7) == chosen);
  CHECK(choose_samples(positions, 100, 7) == positions);
  CHECK(choose_samples(positions, 0, 7).empty());
}

TEST_CASE("what can't be split") {
  CHECK_THROWS_WITH_AS(split_samples(10, 10, 0),
                       "[split] can't hold 10 of 10 samples out; expected 0 <= held out < samples", ValueError);
  CHECK_THROWS_AS(split_samples(10, -1, 0), ValueError);
  CHECK_THROWS_WITH_AS(split_samples(3, 1, 0, {0, 1}), "[split] 2 labels for 3 samples", ValueError);
  CHECK_THROWS_AS(choose_samples({1, 2}, -1, 0), ValueError);
}

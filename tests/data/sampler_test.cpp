// Batches of an epoch: complete, seeded, sharded, and the same from any starting place.
#include "data/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "engine/error.h"

using namespace polygrad;

namespace {

SamplerOptions options_of(std::int64_t size, std::int64_t batch_size) {
  SamplerOptions options;
  options.size = size;
  options.batch_size = batch_size;
  return options;
}

bool is_permutation_of_all(std::vector<std::int64_t> order) {
  std::sort(order.begin(), order.end());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i] != static_cast<std::int64_t>(i)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("the order is a permutation of (seed, epoch)") {
  SamplerOptions options = options_of(100, 8);
  options.seed = 5;
  const Sampler sampler(options);
  CHECK(is_permutation_of_all(sampler.order(0)));
  CHECK(sampler.order(3) == Sampler(options).order(3));
  CHECK(sampler.order(3) != sampler.order(4));
  options.seed = 6;
  CHECK(sampler.order(3) != Sampler(options).order(3));
  options.shuffle = false;
  const auto order = Sampler(options).order(9);
  CHECK(std::is_sorted(order.begin(), order.end()));
}

TEST_CASE("the last batch is short, or left out") {
  SamplerOptions options = options_of(10, 4);
  const Sampler sampler(options);
  CHECK(sampler.batches_per_epoch() == 3);
  CHECK(sampler.samples_per_epoch() == 10);
  CHECK(sampler.range(2).begin == 8);
  CHECK(sampler.range(2).end == 10);
  options.drop_last = true;
  CHECK(Sampler(options).batches_per_epoch() == 2);
  CHECK(Sampler(options).samples_per_epoch() == 8);
  CHECK(Sampler(options_of(8, 4)).batches_per_epoch() == 2);
  CHECK(Sampler(options_of(1, 4)).batches_per_epoch() == 1);
  CHECK_THROWS_AS(sampler.range(3), IndexError);
}

TEST_CASE("ranks share each global batch: together they have every sample once") {
  for (const std::int64_t size : {24, 25, 26, 29, 2}) {
    std::vector<std::int64_t> seen;
    for (int rank = 0; rank < 3; ++rank) {
      SamplerOptions options = options_of(size, 4);
      options.rank = rank;
      options.world = 3;
      const Sampler sampler(options);
      CHECK(sampler.batches_per_epoch() == (size + 11) / 12);
      for (std::int64_t batch = 0; batch < sampler.batches_per_epoch(); ++batch) {
        const auto range = sampler.range(batch);
        if ((batch + 1) * 12 <= size) {
          CHECK(range.begin == batch * 12 + rank * 4);
          CHECK(range.end - range.begin == 4);
        }
        for (std::int64_t i = range.begin; i < range.end; ++i) seen.push_back(i);
      }
    }
    CHECK(static_cast<std::int64_t>(seen.size()) == size);
    CHECK(is_permutation_of_all(seen));
  }
}

TEST_CASE("a position at the end of an epoch is the next one's beginning") {
  const Sampler sampler(options_of(10, 4));
  CHECK(sampler.normalized({2, 1}) == DataPosition{2, 1});
  CHECK(sampler.normalized({2, 3}) == DataPosition{3, 0});
  CHECK(sampler.normalized({0, 7}) == DataPosition{2, 1});
  CHECK_THROWS_AS(sampler.normalized({-1, 0}), ValueError);
}

TEST_CASE("options without sense") {
  CHECK_THROWS_WITH_AS(Sampler(options_of(0, 4)), "[sampler] the data set is empty", ValueError);
  CHECK_THROWS_WITH_AS(Sampler(options_of(3, 0)), "[sampler] batch size 0; expected at least 1", ValueError);
  SamplerOptions options = options_of(3, 4);
  options.drop_last = true;
  CHECK_THROWS_WITH_AS(Sampler{options},
                       "[sampler] 3 samples do not fill one batch of 4, and incomplete ones are dropped", ValueError);
  options = options_of(3, 4);
  options.rank = 2;
  options.world = 2;
  CHECK_THROWS_WITH_AS(Sampler{options}, "[sampler] rank 2 of 2; expected 0 <= rank < world", ValueError);
}

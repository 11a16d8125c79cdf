// Sampler: which samples make up batch b of epoch e. A pure function of its options: no state, so a run goes on from
// any place.
//
// Where this stands: beside loader.h, which asks it. An epoch's order is the permutation of (seed, epoch).
#pragma once

#include <cstdint>
#include <vector>

namespace polygrad {

struct SamplerOptions {
  std::int64_t size = 0;        // samples of the data set
  std::int64_t batch_size = 1;  // of one rank
  bool shuffle = true;
  bool drop_last = false;  // leave an incomplete last batch out
  std::uint64_t seed = 0;
  // Repeated augmentation: each sample stands so many times in a row of the order, which is cut to the data set's size
  // (from 256 samples on, to a multiple of 256): an epoch sees 1 / repeats of the samples, `repeats` views of each.
  // Source: the repeated-augmentation sampler of DeiT's samplers.py.
  int repeats = 1;
  // Data parallel: a global batch is world * batch_size consecutive samples of the order, of which rank r takes the
  // r-th part. All ranks have the same number of batches; of an incomplete last one, parts differ by at most one sample
  // and may be empty.
  int rank = 0;
  int world = 1;
  // Batches of samples of similar lengths: each `bucket` consecutive global batches of the shuffled order are sorted by
  // length and cut anew, and those batches shuffled; repeats come after. 0: off.
  std::int64_t bucket = 0;
};

// A place in the order, counted in batches consumed; `batch` may be the number of batches (the next epoch's start).
struct DataPosition {
  std::int64_t epoch = 0;
  std::int64_t batch = 0;
  bool operator==(const DataPosition&) const = default;
};

class Sampler {
 public:
  // Throws ValueError for an empty data set, sizes below 1, a rank outside [0, world), drop_last with no full batch, or
  // a bucket without the lengths of all samples. `lengths`: of every sample where there are buckets (the loader asks
  // the data set), else empty.
  explicit Sampler(const SamplerOptions& options, std::vector<std::int32_t> lengths = {});

  std::int64_t batches_per_epoch() const { return batches_; }
  std::int64_t samples_per_epoch() const;  // of all ranks together
  // The whole epoch's order, of all ranks: 0 ... size-1, shuffled; with repeats, see above.
  std::vector<std::int64_t> order(std::int64_t epoch) const;
  // The range of `order` that is this rank's part of batch `batch`: [begin, end).
  struct Range {
    std::int64_t begin = 0, end = 0;
  };
  Range range(std::int64_t batch) const;
  // The same place with batch < batches_per_epoch().
  DataPosition normalized(DataPosition position) const;

  const SamplerOptions& options() const { return options_; }

 private:
  void sort_buckets(std::vector<std::int64_t>& order, std::int64_t epoch) const;

  SamplerOptions options_;
  std::vector<std::int32_t> lengths_;
  std::int64_t length_ = 0;  // of an epoch's order
  std::int64_t batches_ = 0;
};

}  // namespace polygrad

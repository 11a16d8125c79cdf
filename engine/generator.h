// Generator: where random numbers come from. A seed and an offset; no hidden state.
//
// Where this stands: above philox.h. Two generators with the same three numbers give the same values, on any machine.
// An op that draws takes the generator's current stream and moves it on by one; its backward recomputes the same
// numbers. Inside a training step the streams are not counted but named: offset = step * layers + layer, first_sample =
// the index of the micro-batch's first sample within the optimizer step. So neither the order of calls, nor
// micro-batches, nor padding change what a sample gets.
#pragma once

#include <cstdint>
#include <vector>

namespace polygrad {

// The numbers of one call: what a kernel needs to recompute them.
struct RandomStream {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;       // ops with a per-sample layout use its low 32 bits
  std::int64_t first_sample = 0;  // index of row 0 of the batch
};

class Generator {
 public:
  explicit Generator(std::uint64_t seed = 0, std::uint64_t offset = 0, std::int64_t first_sample = 0)
      : stream_{seed, offset, first_sample} {}

  std::uint64_t seed() const { return stream_.seed; }
  std::uint64_t offset() const { return stream_.offset; }
  std::int64_t first_sample() const { return stream_.first_sample; }

  // The current stream; advances the offset by one.
  RandomStream take();

  // Scalars for the host (augmentation, shuffles): drawn one after another from the current stream without leaving it.
  std::uint32_t next_u32();
  std::uint64_t next_u64();
  float uniform();  // [0, 1), a multiple of 2^-24
  double uniform(double low, double high);
  std::int64_t integer(std::int64_t low, std::int64_t high);  // low <= result < high, unbiased; ValueError where empty
  bool bernoulli(double probability);
  double normal();                                        // mean 0, variance 1
  double beta(double a, double b);                        // Beta(a, b) for a, b > 0 (a ratio of gamma draws)
  std::vector<std::int64_t> permutation(std::int64_t n);  // 0 ... n-1 in random order

 private:
  RandomStream stream_;
  std::uint64_t drawn_ = 0;  // 32-bit words taken by the scalar functions
};

// The calling thread's generator for factories without one; starts at seed 0 in each thread.
Generator& default_generator();
void manual_seed(std::uint64_t seed);  // of the calling thread

// Mixes numbers into a seed, so that (seed, epoch, index) names an independent generator: Generator(derive_seed(...)).
std::uint64_t derive_seed(std::uint64_t seed, std::uint64_t a, std::uint64_t b = 0);

}  // namespace polygrad

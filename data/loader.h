// Loader: batches of a data set in the sampler's order, prepared by worker threads.
//
// Where this stands: the top of data/. The batches do not depend on the number of workers: a sample's random numbers
// are Generator(derive_seed(seed, epoch, index)), of a repeated sample's further views Generator(derive_seed(that seed,
// view)); its place in a batch is the sampler's. Read next: loader.cpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "data/dataset.h"
#include "data/sampler.h"

namespace polygrad {

// One of images and tokens is defined.
struct Batch {
  Tensor images;                      // f32 (B, C, H, W)
  Tensor labels;                      // i64 (B)
  std::vector<std::int64_t> indices;  // of the samples in the data set
  DataPosition position;              // of this batch
  std::int64_t offset = 0;            // its first sample's place in the epoch's order (all ranks counted)
  bool last = false;                  // the epoch's last
  Tensor tokens = {};                 // i64 (B, towers, length of the batch's longest); kNoToken behind shorter ones
  const Tensor& input() const { return tokens.defined() ? tokens : images; }  // what a model takes
  // Where a model on `device` takes it: tokens stay on the CPU, where masks and positions are made of them.
  Device input_place(Device device) const { return tokens.defined() ? Device::cpu() : device; }
  std::int64_t size() const { return static_cast<std::int64_t>(indices.size()); }
};

// What becomes of a sample whose picture can't be used (ImageError). Anything else that goes wrong always stops.
enum class BadSample : std::uint8_t {
  stop,     // next() throws
  replace,  // the next usable sample of the data set takes its place: a batch stays full
  drop      // the batch is shorter by it
};

struct LoaderOptions {
  SamplerOptions sampler;  // its `size` is filled in by the loader
  int workers = 0;         // threads of the loader; 0: batches are made in next()
  int prefetch = 2;        // batches in the queue per worker, at least 1
  BadSample bad_sample = BadSample::stop;
  std::int64_t epochs = 1;  // how many epochs next() walks through from start(); 0: without end
  // Applied to each image, not to tokens: u8 or f32 (C, H, W) -> f32, all of one shape. Called by several threads.
  // Empty: u8 is scaled to [0, 1], f32 stays.
  std::function<Tensor(const Tensor& image, Generator& generator)> transform;
};

class Loader {
 public:
  // Throws what Sampler's constructor throws. Starts no thread before start().
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options);
  // May run at any time: workers finish the sample they are at, and end.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Goes to `position`; batches prepared from the old place are dropped. A loader that was never started is at the
  // beginning of epoch 0. Where the system refuses threads it goes on with the workers that started, or without any.
  void start(DataPosition position = {});
  // The next batch, or nothing at the end of the last epoch. Not to be called by two threads at once. Throws what the
  // data set or the transform threw (DataError with the sample's index and place added); also DataError for a label
  // outside the classes, images of different shapes or another number of towers in a batch. After that only start()
  // goes on.
  std::optional<Batch> next();

  std::int64_t batches_per_epoch() const { return sampler_.batches_per_epoch(); }
  const Sampler& sampler() const { return sampler_; }
  const Dataset& dataset() const { return *dataset_; }
  // How many samples had to be replaced or dropped so far, each counted once; each was also a warning (log_message).
  std::int64_t bad_samples() const;
  // Seconds that next() has taken or waited, in total: the trainer reports its share of the time.
  double wait_seconds() const { return wait_seconds_; }

 private:
  struct Queue;
  void work(Queue& queue) const;  // a worker's life
  void stop_workers();
  Batch make_batch(DataPosition position, const std::vector<std::int64_t>& order,
                   const std::atomic<bool>* stopping) const;
  Sample load_sample(std::int64_t epoch, std::int64_t index, std::int64_t view) const;
  // The same under options_.bad_sample: nothing where it is dropped; `index` is what took its place.
  std::optional<Sample> load_usable(std::int64_t epoch, std::int64_t& index, std::int64_t view) const;
  void report_bad(std::int64_t index, const char* why) const;

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  Sampler sampler_;
  std::unique_ptr<Queue> queue_;
  mutable std::mutex bad_mutex_;
  mutable std::set<std::int64_t> bad_;  // samples that could not be used
  double wait_seconds_ = 0;
};

}  // namespace polygrad

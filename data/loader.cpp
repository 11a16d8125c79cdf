// How it works: a cursor walks the positions. Without workers (none asked for, or no thread to be had), next() makes
// the batch at the cursor. With workers, each takes the cursor's next position together with a ticket number, makes the
// batch, and puts it into the ring at ticket modulo depth; next() takes tickets in order. A worker takes a ticket only
// while fewer than `depth` are out, so a slot is always free when its batch is ready.
#include "data/loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "data/augment.h"
#include "data/decode.h"
#include "data/token_table.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/log.h"
#include "engine/parallel.h"

namespace polygrad {

namespace {

SamplerOptions with_size(SamplerOptions options, const Dataset* dataset) {
  if (dataset == nullptr) throw ValueError("[loader] no data set given");
  options.size = dataset->size();
  return options;
}

using Order = std::shared_ptr<const std::vector<std::int64_t>>;

// (samples, towers, longest): each (towers, length) sequence filled up with kNoToken. `samples` is their number, or 0,
// where the first one only tells the towers.
Tensor pad_sequences(const std::vector<Tensor>& sequences, std::int64_t samples) {
  const std::int64_t towers = sequences.front().size(0);
  std::int64_t longest = 1;  // empty texts alone still are a batch
  for (const Tensor& sequence : sequences) longest = std::max(longest, sequence.size(1));
  TensorOptions options;
  options.dtype = DType::i64;
  Tensor padded = Tensor::empty(Shape{samples, towers, longest}, options);
  std::int64_t* to = padded.data<std::int64_t>();
  for (std::int64_t i = 0; i < samples; ++i) {
    const Tensor& sequence = sequences[static_cast<std::size_t>(i)];
    const std::int64_t* from = sequence.data<std::int64_t>();
    for (std::int64_t tower = 0; tower < towers; ++tower, from += sequence.size(1), to += longest) {
      std::copy(from, from + sequence.size(1), to);
      std::fill(to + sequence.size(1), to + longest, kNoToken);
    }
  }
  return padded;
}

struct Ticket {
  std::int64_t number = 0;
  DataPosition position;
  Order order;
};

struct Slot {
  bool filled = false;
  Batch batch;
  std::exception_ptr failure;
};

}  // namespace

struct Loader::Queue {
  std::mutex mutex;
  std::condition_variable ready, room;
  std::vector<std::thread> threads;
  std::atomic<bool> stopping{false};

  // The cursor.
  DataPosition position;
  std::int64_t end_epoch = 0;  // first epoch not walked through; negative: none
  Order order;                 // of order_epoch
  std::int64_t order_epoch = -1;
  std::int64_t taken = 0;  // tickets given out

  std::int64_t consumed = 0;
  std::vector<Slot> ring;
  std::exception_ptr failure;  // what next() threw last

  bool exhausted() const { return end_epoch >= 0 && position.epoch >= end_epoch; }

  Ticket take(const Sampler& sampler) {
    if (order_epoch != position.epoch) {
      order = std::make_shared<const std::vector<std::int64_t>>(sampler.order(position.epoch));
      order_epoch = position.epoch;
    }
    Ticket ticket{taken, position, order};
    position = sampler.normalized({position.epoch, position.batch + 1});
    ++taken;
    return ticket;
  }
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options)
    : dataset_(std::move(dataset)),
      options_(std::move(options)),
      sampler_(with_size(options_.sampler, dataset_.get()),
               options_.sampler.bucket > 0 ? token_lengths(*dataset_) : std::vector<std::int32_t>()) {
  if (options_.workers < 0 || options_.prefetch < 1 || options_.epochs < 0) {
    throw ValueError(format("[loader] {} workers, prefetch {}, {} epochs; expected at least 0, 1 and 0",
                            options_.workers, options_.prefetch, options_.epochs));
  }
}

Loader::~Loader() { stop_workers(); }

void Loader::stop_workers() {
  if (!queue_) return;
  {
    const std::lock_guard<std::mutex> lock(queue_->mutex);
    queue_->stopping = true;
  }
  queue_->room.notify_all();
  for (std::thread& thread : queue_->threads) thread.join();
  queue_->threads.clear();
}

void Loader::start(DataPosition position) {
  stop_workers();
  queue_ = std::make_unique<Queue>();
  queue_->position = sampler_.normalized(position);
  queue_->end_epoch = options_.epochs == 0 ? -1 : position.epoch + options_.epochs;
  if (options_.workers == 0) return;
  queue_->ring.resize(static_cast<std::size_t>(options_.workers) * static_cast<std::size_t>(options_.prefetch));
  std::vector<std::thread>& threads = queue_->threads;
  threads.reserve(static_cast<std::size_t>(options_.workers));
  try {
    while (static_cast<int>(threads.size()) < options_.workers) {
      threads.emplace_back([this, queue = queue_.get()] { work(*queue); });
    }
  } catch (const std::system_error& error) {
    log_message(LogLevel::warning,
                format("[loader] {} of {} workers started: {}; the batches are the same, and come slower",
                       threads.size(), options_.workers, error.what()));
  } catch (...) {
    stop_workers();
    queue_.reset();
    throw;
  }
}

void Loader::work(Queue& queue) const {
  const NumThreadsGuard one_thread(1);  // the pool belongs to the training step
  const auto depth = static_cast<std::int64_t>(queue.ring.size());
  std::unique_lock<std::mutex> lock(queue.mutex);
  while (true) {
    queue.room.wait(lock, [&] { return queue.stopping || queue.exhausted() || queue.taken < queue.consumed + depth; });
    if (queue.stopping || queue.exhausted()) return;
    Slot result;
    const std::int64_t number = queue.taken;
    try {
      const Ticket ticket = queue.take(sampler_);
      lock.unlock();
      result.batch = make_batch(ticket.position, *ticket.order, &queue.stopping);
    } catch (...) {
      result.failure = std::current_exception();
    }
    if (!lock.owns_lock()) lock.lock();
    if (queue.stopping) return;
    if (queue.taken == number) ++queue.taken;  // take() itself failed: the ticket carries its exception
    result.filled = true;
    queue.ring[static_cast<std::size_t>(number % depth)] = std::move(result);
    queue.ready.notify_one();
  }
}

std::optional<Batch> Loader::next() {
  const auto begin = std::chrono::steady_clock::now();
  struct Stopwatch {
    double& total;
    std::chrono::steady_clock::time_point begin;
    ~Stopwatch() { total += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); }
  } stopwatch{wait_seconds_, begin};

  if (!queue_) start();
  Queue& queue = *queue_;
  if (queue.failure) std::rethrow_exception(queue.failure);
  if (queue.threads.empty()) {
    if (queue.exhausted()) return std::nullopt;
    try {
      const Ticket ticket = queue.take(sampler_);
      return make_batch(ticket.position, *ticket.order, nullptr);
    } catch (...) {
      queue.failure = std::current_exception();
      throw;
    }
  }

  std::unique_lock<std::mutex> lock(queue.mutex);
  Slot& slot = queue.ring[static_cast<std::size_t>(queue.consumed) % queue.ring.size()];
  queue.ready.wait(lock, [&] { return slot.filled || (queue.exhausted() && queue.consumed == queue.taken); });
  if (!slot.filled) return std::nullopt;
  Slot taken = std::exchange(slot, Slot{});
  ++queue.consumed;
  lock.unlock();
  if (taken.failure) {
    queue.failure = taken.failure;
    stop_workers();
    std::rethrow_exception(taken.failure);
  }
  queue.room.notify_one();
  return std::move(taken.batch);
}

Batch Loader::make_batch(DataPosition position, const std::vector<std::int64_t>& order,
                         const std::atomic<bool>* stopping) const {
  const FloatingPointGuard floating_point;  // the same bits whatever state the caller's thread is in
  const Sampler::Range range = sampler_.range(position.batch);
  Batch batch;
  batch.position = position;
  batch.offset = range.begin;
  batch.last = position.batch + 1 == sampler_.batches_per_epoch();
  batch.indices.assign(order.begin() + range.begin, order.begin() + range.end);
  TensorOptions label_options;
  label_options.dtype = DType::i64;
  batch.labels = Tensor::empty(Shape{batch.size()}, label_options);

  // A rank whose part of the last batch is empty still needs the images' shape.
  const bool empty = batch.indices.empty();
  const std::vector<std::int64_t> wanted = empty ? std::vector<std::int64_t>{order.front()} : batch.indices;
  Shape image_shape;
  std::vector<Tensor> sequences;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (stopping != nullptr && stopping->load(std::memory_order_relaxed)) return batch;
    std::int64_t index = wanted[i];
    const std::int64_t view = (range.begin + static_cast<std::int64_t>(i)) % sampler_.options().repeats;
    const std::optional<Sample> sample = load_usable(position.epoch, index, view);
    if (!sample) continue;
    if (sample->tokens.defined() ? batch.images.defined() : !sequences.empty()) {
      throw DataError(format("[loader] {}: an image among sequences of tokens; expected one kind in a batch",
                             dataset_->describe(index)));
    }
    if (sample->tokens.defined()) {
      if (!sequences.empty() && sample->tokens.size(0) != sequences.front().size(0)) {
        throw DataError(format("[loader] {}: {} sequences, the batch's first has {}; expected as many",
                               dataset_->describe(index), sample->tokens.size(0), sequences.front().size(0)));
      }
      sequences.push_back(sample->tokens);
    } else if (!batch.images.defined()) {
      image_shape = sample->image.shape();
      Shape shape = image_shape;
      shape.insert(0, batch.size());
      batch.images = Tensor::empty(shape);
    } else if (sample->image.shape() != image_shape) {
      throw DataError(format("[loader] {}: image {}, the batch's first is {}; expected one shape in a batch",
                             dataset_->describe(index), to_string(sample->image.shape()), to_string(image_shape)));
    }
    if (empty) break;
    const auto elements = static_cast<std::size_t>(sample->image.defined() ? sample->image.numel() : 0);
    if (elements > 0) {
      std::memcpy(batch.images.data<float>() + kept * elements, sample->image.data<float>(), elements * sizeof(float));
    }
    batch.labels.data<std::int64_t>()[kept] = sample->label;
    batch.indices[kept++] = index;
  }
  if (kept < batch.indices.size()) {
    batch.indices.resize(kept);
    const auto rows = [&](auto* type, const Tensor& from) {  // the first `kept`
      using T = std::remove_pointer_t<decltype(type)>;
      if (!from.defined()) return from;
      Shape shape = from.shape();
      shape[0] = batch.size();
      Tensor to = Tensor::empty(shape, from.options());
      std::copy_n(from.data<T>(), to.numel(), to.data<T>());
      return to;
    };
    batch.images = rows(static_cast<float*>(nullptr), batch.images);
    batch.labels = rows(static_cast<std::int64_t*>(nullptr), batch.labels);
  }
  if (!sequences.empty()) batch.tokens = pad_sequences(sequences, batch.size());
  return batch;
}

void Loader::report_bad(std::int64_t index, const char* why) const {
  {
    const std::lock_guard<std::mutex> lock(bad_mutex_);
    if (!bad_.insert(index).second) return;
  }
  log_message(LogLevel::warning, format("[loader] sample {} is {}: {}", index,
                                        options_.bad_sample == BadSample::drop ? "left out" : "replaced", why));
}

std::int64_t Loader::bad_samples() const {
  const std::lock_guard<std::mutex> lock(bad_mutex_);
  return static_cast<std::int64_t>(bad_.size());
}

std::optional<Sample> Loader::load_usable(std::int64_t epoch, std::int64_t& index, std::int64_t view) const {
  for (std::int64_t tried = 0; tried < dataset_->size(); ++tried) {
    try {
      return load_sample(epoch, index, view);
    } catch (const ImageError& error) {
      if (options_.bad_sample == BadSample::stop) throw;
      report_bad(index, error.what());
      if (options_.bad_sample == BadSample::drop) return std::nullopt;
      index = (index + 1) % dataset_->size();
    }
  }
  throw DataError(format("[loader] none of the {} pictures can be used", dataset_->size()));
}

Sample Loader::load_sample(std::int64_t epoch, std::int64_t index, std::int64_t view) const {
  try {
    std::uint64_t seed =
        derive_seed(options_.sampler.seed, static_cast<std::uint64_t>(epoch), static_cast<std::uint64_t>(index));
    if (view > 0) seed = derive_seed(seed, static_cast<std::uint64_t>(view));
    Generator generator(seed);
    Sample sample = dataset_->get(index, generator);
    if (sample.label < 0 || sample.label >= dataset_->classes()) {
      throw DataError(format("[loader] label {} is outside the {} classes", sample.label, dataset_->classes()));
    }
    if (sample.tokens.defined()) {
      if (sample.tokens.dtype() != DType::i64 || sample.tokens.dim() != 2) {
        throw DTypeError(format("[loader] expected tokens i64 (towers, length), got {}", describe(sample.tokens)));
      }
      sample.tokens = sample.tokens.contiguous();
      return sample;
    }
    sample.image = options_.transform ? options_.transform(sample.image, generator) : normalize(sample.image, {}, {});
    if (sample.image.dtype() != DType::f32) {
      throw DTypeError(format("[loader] expected an f32 image, got {}", describe(sample.image)));
    }
    sample.image = sample.image.contiguous();
    return sample;
  } catch (const OutOfMemoryError&) {
    throw;
  } catch (const ImageError&) {  // names its file
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw DataError(format("{} (sample {}: {})", error.what(), index, dataset_->describe(index)));
  }
}

}  // namespace polygrad

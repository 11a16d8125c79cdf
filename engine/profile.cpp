// The clock that is split among the ops, and the counters that the pool's threads add to.
#include "engine/profile.h"

#include <atomic>
#include <chrono>
#include <map>
#include <tuple>
#include <utility>

#include "engine/dtype.h"
#include "engine/profile_hooks.h"
#include "engine/scope.h"
#include "engine/tensor_impl.h"

namespace polygrad {

namespace detail {

struct WorkCounter {
  std::atomic<std::int64_t> multiply_adds{0}, product_nanoseconds{0}, parallel_nanoseconds{0};
};

}  // namespace detail

namespace {

constexpr const char* kOther = "other";

thread_local Profiler::State* current = nullptr;
thread_local detail::WorkCounter* counter = nullptr;  // of a pool's thread: of whom it works for
thread_local bool inside_chunks = false;              // a parallel_for of this thread is being counted

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double bytes_of(const Tensor& tensor) {
  return tensor.defined() ? static_cast<double>(tensor.numel()) * static_cast<double>(dtype_size(tensor.dtype())) : 0;
}

bool share_memory(const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() && a.impl()->storage == b.impl()->storage;
}

}  // namespace

struct Profiler::State {
  // Clock and counters, as they stood at a moment.
  struct Reading {
    std::int64_t time, multiply_adds, product_nanoseconds, parallel_nanoseconds;
  };

  explicit State(Device of) : device(of), last(read()) {}

  Device device;
  detail::WorkCounter work;
  const char* phase = "forward";
  Reading last;
  std::vector<ProfileRow> rows;
  std::map<std::tuple<std::string, std::string, std::string>, std::size_t> places;  // of (phase, op, path) in rows

  Reading read() const {
    return {now(), work.multiply_adds.load(std::memory_order_relaxed),
            work.product_nanoseconds.load(std::memory_order_relaxed),
            work.parallel_nanoseconds.load(std::memory_order_relaxed)};
  }

  void mark(const char* op, const std::string& path, double bytes) {
    synchronize(device);
    const Reading reading = read();
    const auto [place, fresh] = places.try_emplace({phase, op, path}, rows.size());
    if (fresh) {
      rows.emplace_back();
      rows.back().phase = phase;
      rows.back().op = op;
      rows.back().path = path;
    }
    ProfileRow& row = rows[place->second];
    ++row.calls;
    row.nanoseconds += reading.time - last.time;
    row.parallel_nanoseconds += reading.parallel_nanoseconds - last.parallel_nanoseconds;
    row.product_nanoseconds += reading.product_nanoseconds - last.product_nanoseconds;
    row.operations += 2 * static_cast<double>(reading.multiply_adds - last.multiply_adds);
    row.bytes += bytes;
    last = reading;  // what this function took belongs to the next row
  }
};

Profiler::Profiler(Device device) : outer_(current), outer_counter_(counter) {
  if (outer_) outer_->mark(kOther, Scope::path(), 0);
  state_ = std::make_unique<State>(device);
  current = state_.get();
  counter = &state_->work;
}

Profiler::~Profiler() {
  current = outer_;
  counter = outer_counter_;
  if (outer_) outer_->last = outer_->read();
}

std::vector<ProfileRow> Profiler::rows() {
  state_->mark(kOther, Scope::path(), 0);
  return state_->rows;
}

ProfilePhase::ProfilePhase(const char* name) : profiler_(current) {
  if (!profiler_) return;
  profiler_->mark(kOther, Scope::path(), 0);
  outer_ = std::exchange(profiler_->phase, name);
}

ProfilePhase::~ProfilePhase() {
  if (!profiler_ || profiler_ != current) return;
  try {
    profiler_->mark(kOther, Scope::path(), 0);
  } catch (...) {  // out of memory: the time counts to the next row
  }
  profiler_->phase = outer_;
}

void profile_mark(const char* op) {
  if (current) current->mark(op, Scope::path(), 0);
}

namespace detail {

WorkCounter* work_counter() { return counter; }
void set_work_counter(WorkCounter* value) { counter = value; }

std::int64_t product_begins() noexcept { return counter ? now() : 0; }

void product_ends(std::int64_t begin, std::int64_t multiply_adds) noexcept {
  if (!counter) return;
  counter->multiply_adds.fetch_add(multiply_adds, std::memory_order_relaxed);
  counter->product_nanoseconds.fetch_add(now() - begin, std::memory_order_relaxed);
}

std::int64_t chunks_begin() noexcept {
  if (!counter || inside_chunks) return 0;
  inside_chunks = true;
  return now();
}

void chunks_end(std::int64_t begin) noexcept {
  if (begin == 0) return;
  inside_chunks = false;
  if (counter) counter->parallel_nanoseconds.fetch_add(now() - begin, std::memory_order_relaxed);
}

bool profiling() { return current != nullptr; }

void profile_op(const char* op, const Tensor& output, const Tensor* inputs, std::size_t count) {
  if (!current) return;
  double bytes = bytes_of(output);
  bool view = false;
  for (std::size_t i = 0; i < count; ++i) {
    bytes += bytes_of(inputs[i]);
    view = view || share_memory(inputs[i], output);
  }
  current->mark(op, Scope::path(), view ? 0 : bytes);
}

void profile_rule(const char* op, const char* path, const Tensor& gradient, const Tensor* results, std::size_t count) {
  if (!current) return;
  double bytes = bytes_of(gradient);
  bool view = false;
  for (std::size_t i = 0; i < count; ++i) {
    bytes += 2 * bytes_of(results[i]);  // the input that belongs to it has the same size
    view = view || share_memory(results[i], gradient);
  }
  current->mark(op, path, view ? 0 : bytes);
}

}  // namespace detail

}  // namespace polygrad

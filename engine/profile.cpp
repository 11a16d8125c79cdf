#include "engine/profile.h"

#include <algorithm>
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

struct ProductCounter {
  std::atomic<std::int64_t> multiply_adds{0}, nanoseconds{0};
};

}  // namespace detail

namespace {

constexpr const char* kOther = "other";

std::int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

thread_local Profiler::State* current = nullptr;
thread_local detail::ProductCounter* counter = nullptr;

}  // namespace

struct Profiler::State {
  detail::ProductCounter products;
  const char* phase = "forward";
  std::int64_t last = nanoseconds_now();
  std::int64_t counted = 0, counted_nanoseconds = 0;  // of products, up to `last`
  std::vector<ProfileRow> rows;
  std::map<std::tuple<std::string, std::string, std::string>, std::size_t> places;  // (phase, op, path) in rows

  void mark(const char* op, std::string path, double bytes) {
    const std::int64_t now = nanoseconds_now();
    const std::int64_t products_now = products.multiply_adds.load(std::memory_order_relaxed),
                       product_time_now = products.nanoseconds.load(std::memory_order_relaxed);
    const auto [place, fresh] = places.try_emplace({phase, op, path}, rows.size());
    if (fresh) rows.push_back({phase, op, std::move(path)});
    ProfileRow& row = rows[place->second];
    ++row.calls;
    row.nanoseconds += now - last;
    row.product_nanoseconds += product_time_now - counted_nanoseconds;
    row.operations += 2.0 * static_cast<double>(products_now - counted);
    row.bytes += bytes;
    last = now;
    counted = products_now;
    counted_nanoseconds = product_time_now;
  }
};

Profiler::Profiler() : state_(std::make_unique<State>()), outer_(current) {
  current = state_.get();
  counter = &state_->products;
}

Profiler::~Profiler() {
  current = outer_;
  counter = outer_ ? &outer_->products : nullptr;
}

std::vector<ProfileRow> Profiler::rows() {
  state_->mark(kOther, Scope::path(), 0);
  return state_->rows;
}

void Profiler::reset() {
  state_->rows.clear();
  state_->places.clear();
  state_->counted = state_->products.multiply_adds.load(std::memory_order_relaxed);
  state_->counted_nanoseconds = state_->products.nanoseconds.load(std::memory_order_relaxed);
  state_->last = nanoseconds_now();
}

ProfilePhase::ProfilePhase(const char* name) : outer_(nullptr) {
  if (!current) return;
  current->mark(kOther, Scope::path(), 0);
  outer_ = std::exchange(current->phase, name);
}

ProfilePhase::~ProfilePhase() {
  if (!outer_ || !current) return;
  current->mark(kOther, Scope::path(), 0);
  current->phase = outer_;
}

void profile_mark(const char* op) {
  if (current) current->mark(op, Scope::path(), 0);
}

namespace detail {

ProductCounter* product_counter() { return counter; }
void set_product_counter(ProductCounter* value) { counter = value; }

std::int64_t product_begins() noexcept { return counter ? nanoseconds_now() : 0; }

void product_ends(std::int64_t begin, std::int64_t multiply_adds) noexcept {
  if (!counter) return;
  counter->multiply_adds.fetch_add(multiply_adds, std::memory_order_relaxed);
  counter->nanoseconds.fetch_add(nanoseconds_now() - begin, std::memory_order_relaxed);
}

bool profiling() { return current != nullptr; }

double bytes_of(const Tensor& tensor) {
  return tensor.defined() ? static_cast<double>(tensor.numel()) * static_cast<double>(dtype_size(tensor.dtype())) : 0;
}

void profile_op(const char* op, const Tensor& output, const Tensor* inputs, std::size_t count) {
  if (!current) return;
  double bytes = bytes_of(output);
  for (std::size_t i = 0; i < count; ++i) {
    bytes += bytes_of(inputs[i]);
    if (inputs[i].defined() && output.defined() && inputs[i].impl()->storage == output.impl()->storage) {
      bytes = 0;  // a view moves nothing
      break;
    }
  }
  current->mark(op, Scope::path(), bytes);
}

void profile_mark_at(const char* op, const char* path, double bytes) {
  if (current) current->mark(op, path, bytes);
}

}  // namespace detail

}  // namespace polygrad

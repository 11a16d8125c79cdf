// The caching allocator: statistics, reuse, the limit and its error, trimming, threads.
#include "engine/memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "engine/error.h"
#include "engine/factory.h"
#include "engine/testing.h"
#include "engine/workspace.h"
#include "tests/engine/tiny_ops.h"

using namespace polygrad;
using doctest::Contains;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Restores "no limit" also where a check throws.
struct LimitGuard {
  explicit LimitGuard(std::size_t bytes) { set_memory_limit(bytes); }
  ~LimitGuard() { set_memory_limit(0); }
};

}  // namespace

TEST_CASE("the statistics return to the start") {
  trim_memory();
  const MemoryStats start = memory_stats();
  CHECK(start.bytes_cached == 0);
  reset_peak_memory();
  {
    const Tensor x = Tensor::empty({1000, 1000});
    const MemoryStats during = memory_stats();
    CHECK(during.bytes_in_use >= start.bytes_in_use + 4'000'000);
    CHECK(during.bytes_in_use <= start.bytes_in_use + 4'500'000);  // at most an eighth is wasted
    CHECK(during.allocations == start.allocations + 1);
    CHECK(during.fresh_allocations == start.fresh_allocations + 1);
  }
  MemoryStats after = memory_stats();
  CHECK(after.bytes_in_use == start.bytes_in_use);
  CHECK(after.bytes_cached >= 4'000'000);
  CHECK(after.peak_bytes_in_use >= start.bytes_in_use + 4'000'000);
  trim_memory();
  CHECK(memory_stats().bytes_cached == 0);
  reset_peak_memory();
  CHECK(memory_stats().peak_bytes_in_use == start.bytes_in_use);
}

TEST_CASE("what a graph held comes back when it dies") {
  const std::size_t start = memory_stats().bytes_in_use;
  {
    const Tensor x = tiny::leaf(std::vector<double>(1000, 0.5), {1000});
    const Tensor y = tiny::mul(tiny::mul(x, x), x);
    CHECK(memory_stats().bytes_in_use >= start + 3 * 8000);
    tiny::sum(y).backward();
  }
  CHECK(memory_stats().bytes_in_use == start);
  {
    const Tensor x = tiny::leaf(std::vector<double>(1000, 0.5), {1000});
    const Tensor never_walked = tiny::mul(tiny::mul(x, x), x);
  }
  CHECK(memory_stats().bytes_in_use == start);
}

TEST_CASE("a freed block serves the next request of about its size") {
  for (const std::int64_t size : {10, 5'000, 1'000'000}) {
    CAPTURE(size);
    { const Tensor x = Tensor::empty({size}); }
    const std::uint64_t fresh = memory_stats().fresh_allocations;
    for (int i = 0; i < 20; ++i) {
      const Tensor x = Tensor::empty({size - i % 2});
      x.is_contiguous();
    }
    CHECK(memory_stats().fresh_allocations == fresh);
  }
}

TEST_CASE("blocks are aligned and never shared, also at size 0") {
  std::vector<void*> blocks;
  const std::size_t sizes[] = {0, 1, 63, 64, 65, 1000, 100'000, 5'000'000};
  for (const std::size_t size : sizes) {
    void* pointer = detail::allocate(size, {});
    REQUIRE(pointer != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(pointer) % 64 == 0);
    std::memset(pointer, static_cast<int>(blocks.size()), size);
    for (void* other : blocks) CHECK(other != pointer);
    blocks.push_back(pointer);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (sizes[i] > 0) CHECK(static_cast<unsigned char*>(blocks[i])[sizes[i] - 1] == i);
    detail::deallocate(blocks[i], sizes[i], {});
  }
}

TEST_CASE("the limit: an exception that says what is going on, and life goes on") {
  trim_memory();
  const Tensor held = Tensor::empty({1000});
  const MemoryStats before = memory_stats();
  const LimitGuard limit(before.bytes_in_use + 8 * kMiB);
  CHECK(memory_stats().limit == before.bytes_in_use + 8 * kMiB);
  { const Tensor fits = Tensor::empty({static_cast<std::int64_t>(kMiB)}); }  // 4 MiB
  CHECK(memory_stats().bytes_cached >= 4 * kMiB);
  { const Tensor cache_makes_room = Tensor::empty({static_cast<std::int64_t>(kMiB + kMiB / 2)}); }  // 6 MiB
  const std::string expected = "[allocate] out of memory: requested 16777216 bytes; " +
                               std::to_string(before.bytes_in_use) + " in use, 0 cached, limit " +
                               std::to_string(before.bytes_in_use + 8 * kMiB) +
                               "; use a smaller batch, raise the limit (set_memory_limit) or free tensors";
  CHECK_THROWS_WITH_AS(Tensor::empty({static_cast<std::int64_t>(4 * kMiB)}), expected.c_str(), OutOfMemoryError);
  CHECK(memory_stats().bytes_in_use == before.bytes_in_use);
  CHECK(Tensor::empty({1000}).numel() == 1000);
  {
    Workspace workspace;
    CHECK_THROWS_AS(workspace.allocate(16 * kMiB), OutOfMemoryError);
    CHECK(workspace.allocate(kMiB) != nullptr);
  }
  CHECK(memory_stats().bytes_in_use == before.bytes_in_use);
}

TEST_CASE("the limit holds also for threads that allocate at the same instant") {
  trim_memory();
  constexpr int kThreads = 8, kRounds = 100, kFit = 3;
  const LimitGuard limit(memory_stats().bytes_in_use + kFit * 8 * kMiB);
  std::barrier together(kThreads);
  std::atomic<int> held{0}, most{0};
  std::atomic<std::size_t> most_bytes{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        together.arrive_and_wait();
        Tensor x;
        try {
          x = Tensor::empty({static_cast<std::int64_t>(2 * kMiB)});
          ++held;
        } catch (const OutOfMemoryError&) {
        }
        together.arrive_and_wait();
        if (t == 0) {
          const MemoryStats stats = memory_stats();
          most_bytes = std::max(most_bytes.load(), stats.bytes_in_use + stats.bytes_cached);
          most = std::max(most.load(), held.exchange(0));
        }
        together.arrive_and_wait();
        x = Tensor();
        trim_memory();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(most <= kFit);
  CHECK(most > 0);
  CHECK(most_bytes <= memory_stats().limit);
}

TEST_CASE("a limit below what is cached empties the cache; one below what is in use stops new requests") {
  trim_memory();
  const Tensor held = Tensor::empty({static_cast<std::int64_t>(kMiB)});
  { const Tensor freed = Tensor::empty({static_cast<std::int64_t>(kMiB)}); }
  const LimitGuard limit(memory_stats().bytes_in_use + kMiB);
  CHECK(memory_stats().bytes_cached == 0);
  const LimitGuard lower(kMiB);
  CHECK_THROWS_AS(Tensor::empty({static_cast<std::int64_t>(kMiB)}), OutOfMemoryError);
}

TEST_CASE("impossible sizes are exceptions too") {
  CHECK_THROWS_AS(detail::allocate(~std::size_t{0}, {}), OutOfMemoryError);
  CHECK_THROWS_AS(detail::allocate(std::size_t{1} << 62, {}), OutOfMemoryError);
  CHECK_THROWS_WITH_AS(detail::allocate(std::size_t{1} << 50, {}), Contains("limit none"), OutOfMemoryError);
}

TEST_CASE("a thread's own cache is given back when it ends") {
  trim_memory();
  const std::size_t in_use = memory_stats().bytes_in_use;
  for (int round = 0; round < 20; ++round) {
    std::thread([] {
      for (std::int64_t size = 1; size < 10'000; size *= 3) Tensor::empty({size});
    }).join();
  }
  CHECK(memory_stats().bytes_in_use == in_use);
  const std::uint64_t fresh = memory_stats().fresh_allocations;
  std::thread([] { Tensor::empty({81}); }).join();  // served by what earlier threads left
  CHECK(memory_stats().fresh_allocations == fresh);
  trim_memory();
  CHECK(memory_stats().bytes_cached == 0);
}

TEST_CASE("tensors may die in another thread than they were born in, also while it ends") {
  const std::size_t in_use = memory_stats().bytes_in_use;
  Tensor x;
  std::thread([&] { x = Tensor::empty({100}); }).join();
  std::thread([y = std::move(x)]() mutable { y = Tensor(); }).join();
  std::thread([] {
    thread_local Tensor late;
    late = Tensor::empty({100});
  }).join();
  CHECK(memory_stats().bytes_in_use == in_use);
}

TEST_CASE("many threads at once") {
  trim_memory();
  const std::size_t in_use = memory_stats().bytes_in_use;
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([t] {
      std::vector<Tensor> held(8);
      for (int i = 0; i < 500; ++i) {
        Tensor& slot = held[static_cast<std::size_t>(i) % held.size()];
        slot = zeros({1 + (i * 37 + t * 1001) % 40'000});
        if (i % 100 == 0) trim_memory();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(memory_stats().bytes_in_use == in_use);
  trim_memory();
  CHECK(memory_stats().bytes_cached == 0);
}

TEST_CASE("varying sizes, each in a new thread: the cache stays bounded") {
  trim_memory();
  std::size_t most = 0;
  for (int round = 0; round < 600; ++round) {
    std::thread([round] {
      const std::int64_t size = 64 + (round * 131) % 2177;  // 64 ... 2240
      const Tensor x = zeros({size, 64}), y = zeros({size, 16});
    }).join();
    most = std::max(most, memory_stats().bytes_cached);
  }
  // Every size class between 16 KiB and 560 KiB holds one block at most twice.
  CHECK(most < 20 * kMiB);
}

TEST_CASE("poisoned memory shows what was not written") {
  const testing::PoisonGuard poison;
  const Tensor x = Tensor::empty({100}), y = Tensor::empty({100}, {.dtype = DType::f64});
  CHECK(std::isnan(x.to_vector<float>()[57]));
  CHECK(std::isnan(y.to_vector<double>()[99]));
  CHECK(zeros({3}).to_vector<float>() == std::vector<float>{0, 0, 0});
}

// The thread pool's promises, one by one.
#include "engine/parallel.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "engine/error.h"
#include "engine/workspace.h"
#include "tests/support/isolation.h"

using namespace polygrad;

namespace {

constexpr int kThreadCounts[] = {1, 2, 3, 16};

int count_threads() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
}

// Sums 1/i in chunks, whose partial sums are added in order: what a kernel that reduces does.
float harmonic(std::int64_t count, std::int64_t grain) {
  std::vector<float> partial(static_cast<std::size_t>((count + grain - 1) / grain));
  parallel_for(0, count, grain, [&](std::int64_t begin, std::int64_t end) {
    float sum = 0;
    for (std::int64_t i = begin; i < end; ++i) sum += 1.f / static_cast<float>(i + 1);
    partial[static_cast<std::size_t>(begin / grain)] = sum;
  });
  float total = 0;
  for (const float sum : partial) total += sum;
  return total;
}

}  // namespace

TEST_CASE("the chunks are the same for any number of threads, and cover the range once") {
  const std::set<std::pair<std::int64_t, std::int64_t>> expected = {{-5, -1}, {-1, 3}, {3, 7}, {7, 9}};
  for (const int threads : kThreadCounts) {
    const NumThreadsGuard guard(threads);
    std::set<std::pair<std::int64_t, std::int64_t>> seen;
    std::mutex mutex;
    int calls = 0;
    parallel_for(-5, 9, 4, [&](std::int64_t begin, std::int64_t end) {
      const std::lock_guard lock(mutex);
      seen.emplace(begin, end);
      ++calls;
    });
    CHECK(seen == expected);
    CHECK(calls == 4);
  }
}

TEST_CASE("empty ranges and wrong grains") {
  int calls = 0;
  const auto count = [&](std::int64_t, std::int64_t) { ++calls; };
  parallel_for(3, 3, 1, count);
  parallel_for(3, 2, 1, count);
  CHECK(calls == 0);
  CHECK_THROWS_AS(parallel_for(0, 1, 0, count), InternalError);
  parallel_for(0, 10, std::numeric_limits<std::int64_t>::max(), count);
  CHECK(calls == 1);
}

TEST_CASE("a reduction has the same bits for any number of threads") {
  const NumThreadsGuard one(1);
  const float expected = harmonic(100'003, 1000);
  for (const int threads : kThreadCounts) {
    const NumThreadsGuard guard(threads);
    for (int repeat = 0; repeat < 20; ++repeat) CHECK(harmonic(100'003, 1000) == expected);
  }
}

TEST_CASE("nested calls run serially, in order, in their own thread") {
  const NumThreadsGuard guard(4);
  std::atomic<int> wrong{0}, inner_calls{0};
  parallel_for(0, 16, 1, [&](std::int64_t, std::int64_t) {
    const std::thread::id outer = std::this_thread::get_id();
    std::int64_t next = 0;
    parallel_for(0, 100, 7, [&](std::int64_t begin, std::int64_t end) {
      if (std::this_thread::get_id() != outer || begin != next) ++wrong;
      next = end;
      ++inner_calls;
    });
    if (next != 100) ++wrong;
  });
  CHECK(wrong == 0);
  CHECK(inner_calls == 16 * 15);
}

TEST_CASE("several host threads may call at once") {
  const float expected = harmonic(50'000, 500);
  std::atomic<int> wrong{0};
  std::vector<std::thread> hosts;
  for (int host = 0; host < 8; ++host) {
    hosts.emplace_back([&, host] {
      const NumThreadsGuard guard(1 + host % 4);
      for (int repeat = 0; repeat < 30; ++repeat) {
        if (harmonic(50'000, 500) != expected) ++wrong;
      }
    });
  }
  for (std::thread& host : hosts) host.join();
  CHECK(wrong == 0);
}

TEST_CASE("of several exceptions the lowest chunk's arrives, and the pool goes on") {
  for (const int threads : kThreadCounts) {
    const NumThreadsGuard guard(threads);
    for (int repeat = 0; repeat < 50; ++repeat) {
      std::string text;
      try {
        parallel_for(0, 64, 1, [&](std::int64_t begin, std::int64_t) {
          // The lowest one is slow to fail.
          if (begin == 5) std::this_thread::sleep_for(std::chrono::microseconds(200));
          if (begin == 5 || begin == 6 || begin == 40) throw std::runtime_error("chunk " + std::to_string(begin));
        });
      } catch (const std::runtime_error& error) {
        text = error.what();
      }
      CHECK(text == "chunk 5");
    }
    CHECK(harmonic(1000, 10) == harmonic(1000, 10));
  }
}

#if defined(__x86_64__)
TEST_CASE("all participants compute in one floating-point state, whatever the caller's is") {
  constexpr std::uint32_t kStatus = 0x3f, kFlushToZero = 0x8040, kDefault = 0x1f80, kRoundUp = 0x4000;
  const std::uint32_t original = _mm_getcsr();
  for (const std::uint32_t state : {kDefault, kDefault | kFlushToZero, kDefault | kRoundUp}) {
    for (const int threads : kThreadCounts) {
      const NumThreadsGuard guard(threads);
      _mm_setcsr(state);
      std::atomic<int> wrong{0};
      volatile float smallest = std::numeric_limits<float>::denorm_min();
      parallel_for(0, 64, 1, [&](std::int64_t, std::int64_t) {
        if ((_mm_getcsr() & ~kStatus) != kDefault) ++wrong;
        if (smallest * 2 == 0) ++wrong;
      });
      std::uint32_t in_workspace = 0;
      {
        const Workspace workspace;
        in_workspace = _mm_getcsr();
      }
      const std::uint32_t after = _mm_getcsr();
      _mm_setcsr(original);
      CHECK(wrong == 0);
      CHECK((in_workspace & ~kStatus) == kDefault);
      CHECK((after & ~kStatus) == state);
    }
  }
}
#endif

TEST_CASE("[alone] counts threads" * doctest::skip()) {
  std::thread([] {}).join();  // the thread sanitizer starts one of its own beside the first
  // A thread that has been joined is listed for a moment longer.
  const auto settles_at = [](int most) {
    for (int wait = 0; wait < 1000 && count_threads() > most; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return count_threads() <= most;
  };
  settles_at(1);
  const int before = count_threads();
  {
    const NumThreadsGuard guard(1);
    harmonic(100'000, 100);
  }
  CHECK(count_threads() == before);
  std::atomic<int> most{0};
  std::vector<std::thread> hosts;
  for (int host = 0; host < 8; ++host) {
    hosts.emplace_back([&] {
      const NumThreadsGuard guard(1);
      for (int repeat = 0; repeat < 20; ++repeat) harmonic(10'000, 100);
      const int now = count_threads();
      int seen = most.load();
      while (seen < now && !most.compare_exchange_weak(seen, now)) {
      }
    });
  }
  for (std::thread& host : hosts) host.join();
  CHECK(most <= before + 8);
  const NumThreadsGuard guard(3);
  harmonic(100'000, 100);
  CHECK(settles_at(before + 2));
}

TEST_CASE("with one thread the pool is not touched; with n it starts n - 1 threads; they don't keep a process alive") {
  CHECK(testing::run_in_new_process("[alone] counts threads") == 0);
}

TEST_CASE("[alone] no thread to be had" * doctest::skip()) {
  const NumThreadsGuard guard(3);
  testing::refuse_threads(true);
  CHECK_THROWS_AS(std::thread([] {}), std::system_error);
  const float expected = harmonic(50'000, 500);
  testing::refuse_threads(false);
  const int before = count_threads();
  CHECK(harmonic(50'000, 500) == expected);
  CHECK(count_threads() == before + 2);  // later calls have their helpers
}

TEST_CASE("where the system refuses threads the caller computes alone, and the same") {
  CHECK(testing::run_in_new_process("[alone] no thread to be had") == 0);
}

TEST_CASE("no more participants than asked for") {
  {
    const NumThreadsGuard more(8);  // the pool has more workers than the next call may use
    harmonic(10'000, 10);
  }
  const NumThreadsGuard guard(2);
  std::atomic<int> inside{0}, most{0};
  parallel_for(0, 200, 1, [&](std::int64_t, std::int64_t) {
    const int now = ++inside;
    int seen = most.load();
    while (seen < now && !most.compare_exchange_weak(seen, now)) {
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    --inside;
  });
  CHECK(most <= 2);
}

TEST_CASE("guards belong to their thread, and nest") {
  set_num_threads(3);
  CHECK(num_threads() == 3);
  {
    const NumThreadsGuard outer(5);
    CHECK(num_threads() == 5);
    {
      const NumThreadsGuard inner(1);
      CHECK(num_threads() == 1);
      int elsewhere = 0;
      std::thread([&] { elsewhere = num_threads(); }).join();
      CHECK(elsewhere == 3);
    }
    CHECK(num_threads() == 5);
  }
  set_num_threads(0);
  CHECK(num_threads() == default_num_threads());
  CHECK_THROWS_AS(set_num_threads(-1), ValueError);
  CHECK_THROWS_AS(NumThreadsGuard(0), ValueError);
  CHECK(num_threads() == default_num_threads());
}

TEST_CASE("the default keeps to the cores this process may use") {
  cpu_set_t set;
  REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
  CHECK(default_num_threads() >= 1);
  CHECK(default_num_threads() <= CPU_COUNT(&set));
}

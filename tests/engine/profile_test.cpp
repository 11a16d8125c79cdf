// The profiler: rows that add up to the time that passed, under the right names, and nothing else changed.
#include "engine/profile.h"

#include <doctest/doctest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "engine/parallel.h"
#include "engine/scope.h"
#include "tests/engine/tiny_ops.h"

using namespace polygrad;

namespace {

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The row of an op in a phase, and a module if any is named; one without calls where there is none.
ProfileRow row_of(const std::vector<ProfileRow>& rows, const std::string& phase, const std::string& op,
                  const std::string& path = "") {
  for (const ProfileRow& row : rows) {
    if (row.phase == phase && row.op == op && row.path == path) return row;
  }
  return {};
}

std::int64_t total(const std::vector<ProfileRow>& rows) {
  std::int64_t sum = 0;
  for (const ProfileRow& row : rows) sum += row.nanoseconds;
  return sum;
}

// A small graph in two modules; returns the gradient of its leaf.
std::vector<double> work() {
  Tensor x = tiny::leaf({1, 2, 3, 4, 5, 6}, {2, 3});
  Tensor y;
  {
    const Scope scope("blocks.0");
    y = tiny::mul(tiny::scale(x, 0.1), x);
  }
  {
    const Scope scope("head");
    y = tiny::sum(tiny::add(y, tiny::transpose(tiny::transpose(y))));
  }
  y.backward();
  return x.grad().to_vector<double>();
}

}  // namespace

TEST_CASE("the rows add up to the time that passed") {
  const std::int64_t outside = now();
  Profiler profiler;
  const std::int64_t inside = now();
  work();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const std::int64_t inside_end = now();
  const std::vector<ProfileRow> rows = profiler.rows();
  const std::int64_t outside_end = now();
  CHECK(total(rows) >= inside_end - inside);
  CHECK(total(rows) <= outside_end - outside);
  CHECK(row_of(rows, "forward", "other").nanoseconds >= 2'000'000);  // the sleep was no op
  for (const ProfileRow& row : rows) CHECK(row.nanoseconds >= 0);
}

TEST_CASE("each op has its row by phase and module, forward and backward, with its bytes") {
  Profiler profiler;
  work();
  const std::vector<ProfileRow> rows = profiler.rows();
  const double matrix = 6 * 8;
  CHECK(row_of(rows, "forward", "scale", "blocks.0").calls == 1);
  CHECK(row_of(rows, "forward", "scale", "blocks.0").bytes == 2 * matrix);
  CHECK(row_of(rows, "backward", "scale", "blocks.0").bytes == 3 * matrix);
  CHECK(row_of(rows, "forward", "mul", "blocks.0").bytes == 3 * matrix);
  CHECK(row_of(rows, "backward", "mul", "blocks.0").bytes == 5 * matrix);
  CHECK(row_of(rows, "forward", "transpose", "head").calls == 2);
  CHECK(row_of(rows, "forward", "transpose", "head").bytes == 0);  // views move nothing
  CHECK(row_of(rows, "backward", "transpose", "head").calls == 2);
  CHECK(row_of(rows, "backward", "transpose", "head").bytes == 0);
  CHECK(row_of(rows, "forward", "sum", "head").calls == 1);
  CHECK(row_of(rows, "backward", "accumulate").calls == 6);  // a visit of each node
  CHECK(row_of(rows, "forward", "mul").calls == 0);          // none outside of its module
  CHECK(row_of(rows, "backward", "other").calls == 1);
}

TEST_CASE("a rule's own ops count to the rule") {
  const auto square = [](const Tensor& x) {
    return record("square", tiny::product(x, x), {x}, [saved = SavedTensor(x, "x")](const Tensor& g, NeededMask) {
      return Gradients{tiny::scale(tiny::mul(g, saved.get()), 2)};
    });
  };
  Profiler profiler;
  Tensor x = tiny::leaf(3);
  square(x).backward();
  const std::vector<ProfileRow> rows = profiler.rows();
  CHECK(x.grad().item<double>() == 6);
  CHECK(row_of(rows, "backward", "square").calls == 1);
  for (const char* phase : {"forward", "backward"}) {
    CHECK(row_of(rows, phase, "scale").calls == 0);
    CHECK(row_of(rows, phase, "mul").calls == 0);
  }
}

TEST_CASE("phases and marks, also through an exception") {
  Profiler profiler;
  {
    const ProfilePhase phase("optimizer");
    profile_mark("update");
    profile_mark("update");
    tiny::scale(tiny::leaf(1), 2);
  }
  try {
    const ProfilePhase phase("data");
    throw std::runtime_error("no data");
  } catch (const std::runtime_error&) {
  }
  profile_mark("afterwards");
  const std::vector<ProfileRow> rows = profiler.rows();
  CHECK(row_of(rows, "optimizer", "update").calls == 2);
  CHECK(row_of(rows, "optimizer", "scale").calls == 1);
  CHECK(row_of(rows, "optimizer", "other").calls == 1);  // up to the end of the phase
  CHECK(row_of(rows, "data", "other").calls == 1);
  CHECK(row_of(rows, "forward", "afterwards").calls == 1);
}

TEST_CASE("an outer profiler rests while an inner one measures") {
  Profiler outer;
  tiny::scale(tiny::leaf(1), 2);
  const std::int64_t begin = now();
  std::int64_t inner_time = 0;
  {
    Profiler inner;
    work();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const std::vector<ProfileRow> rows = inner.rows();
    CHECK(row_of(rows, "forward", "scale", "blocks.0").calls == 1);
    inner_time = total(rows);
  }
  profile_mark("afterwards");
  const std::int64_t end = now();
  const std::vector<ProfileRow> rows = outer.rows();
  CHECK(row_of(rows, "forward", "scale").calls == 1);
  CHECK(row_of(rows, "forward", "scale", "blocks.0").calls == 0);
  CHECK(inner_time >= 20'000'000);
  CHECK(row_of(rows, "forward", "afterwards").nanoseconds <= end - begin - inner_time);
}

TEST_CASE("without a profiler marks and phases do nothing, and one that comes later sees only what follows") {
  profile_mark("early");
  const ProfilePhase phase("early");
  Profiler profiler;
  tiny::scale(tiny::leaf(1), 2);
  const std::vector<ProfileRow> rows = profiler.rows();
  CHECK(row_of(rows, "forward", "scale").calls == 1);
  for (const ProfileRow& row : rows) {
    CHECK(row.op != "early");
    CHECK(row.phase != "early");
  }
}

TEST_CASE("a profiler changes no bit of a result") {
  const std::vector<double> expected = work();
  Profiler profiler;
  CHECK(work() == expected);
}

TEST_CASE("the time in parallel_for counts once for each thread, nested or not") {
  const auto busy = [](std::int64_t begin, std::int64_t) {
    // Chunks of known length: what is counted lies between their sum and what the threads had in all.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    parallel_for(0, 2, 1, [&](std::int64_t, std::int64_t) {
      if (begin % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  };
  for (const int threads : {1, 2, 3}) {
    CAPTURE(threads);
    const NumThreadsGuard guard(threads);
    Profiler profiler;
    parallel_for(0, 6, 1, busy);
    profile_mark("work");
    const ProfileRow row = row_of(profiler.rows(), "forward", "work");
    CHECK(row.parallel_nanoseconds >= 6 * 2'000'000 + 3 * 2 * 1'000'000);
    CHECK(row.parallel_nanoseconds <= threads * row.nanoseconds);
    CHECK(row.product_nanoseconds == 0);
  }
}

TEST_CASE("host threads profile side by side, each its own work") {
  std::vector<ProfileRow> rows[3];
  std::vector<double> results[3];
  std::vector<std::thread> threads;
  const std::vector<double> expected = work();
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([i, &rows, &results] {
      if (i == 2) {  // one that does not
        for (int k = 0; k < 50; ++k) results[i] = work();
        return;
      }
      Profiler profiler;
      for (int k = 0; k < 20 + i; ++k) results[i] = work();
      rows[i] = profiler.rows();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<double>& result : results) CHECK(result == expected);
  for (int i = 0; i < 2; ++i) CHECK(row_of(rows[i], "backward", "mul", "blocks.0").calls == 20 + i);
}

// Profiler: where the time of a piece of work goes, by op and by module, and what its matrix products take.
//
// Where this stands: beside autograd.h, which says when an op's front or its gradient's rule has ended.
// How it works: as the host thread sees it, everything on the CPU runs one after another. So a clock that is read at
// the end of each op splits the whole time among the ops: nothing is lost, nothing counts twice, and the rows add up to
// the time that passed. What lies between two ops (the caller's code, copy_, fill_) counts to the second one.
//
//   Profiler profiler;
//   cross_entropy(model.forward(images, context), labels).backward();
//   for (const ProfileRow& row : profiler.rows()) ...
//
// A profiler sees its own thread, with the pool's threads as far as they work for it; several threads may have one
// each. It changes no result. Without one an op pays for a look at a pointer. Read next: profile.cpp;
// apps/training/profile_report.h (the tables).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/device.h"

namespace polygrad {

namespace detail {
struct WorkCounter;
}

struct ProfileRow {
  std::string phase;  // "forward", "backward" (rules and the walk), or a ProfilePhase's name
  std::string op;     // as errors name it; "accumulate": gradients added up; "other": what no op was
  std::string path;   // of the module, as Scope::path() has it; "" outside of all
  std::int64_t calls = 0;
  std::int64_t nanoseconds = 0;  // of the host thread
  // The same work as its threads saw it, added up over them: inside parallel_for, and therein inside products.
  std::int64_t parallel_nanoseconds = 0, product_nanoseconds = 0;
  double operations = 0;  // of the products as computed: two for each multiply-add
  // At least read and written: operands and results of a forward, the same and the gradient of a backward (what else it
  // saved is not counted); 0 for a view.
  double bytes = 0;
};

class Profiler {
 public:
  // From here on this thread is measured; an outer profiler of the thread rests meanwhile. To be destroyed on the same
  // thread, the innermost first. A GPU works behind the thread's back: of a `device` that is one each mark waits for
  // its work, so that an op's time is that of its kernels and of starting them. Nothing overlaps then, and the whole
  // takes longer than without a profiler.
  explicit Profiler(Device device = {});
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Marks the time up to now as "other", and returns all rows in the order of their first appearance.
  std::vector<ProfileRow> rows();

  struct State;

 private:
  std::unique_ptr<State> state_;
  State* outer_;
  detail::WorkCounter* outer_counter_;
};

// While one is alive, what this thread's profiler sees belongs to the phase of this name, a string literal.
class ProfilePhase {
 public:
  explicit ProfilePhase(const char* name);
  ~ProfilePhase();
  ProfilePhase(const ProfilePhase&) = delete;
  ProfilePhase& operator=(const ProfilePhase&) = delete;

 private:
  Profiler::State* profiler_;
  const char* outer_ = nullptr;
};

// Says that what was done since the last mark was `op`, a string literal: for work that is no recorded op.
void profile_mark(const char* op);

}  // namespace polygrad

// Profiler: where the time of a piece of work goes, by op and by module, and how many operations its products take.
//
// Where this stands: beside autograd.h, which tells it when an op's front or its gradient's rule has ended.
// How it works: everything on the CPU runs one after another as far as the host thread can see, so a clock that is read
// at the end of each op splits the whole time among the ops: nothing is lost and nothing counted twice, and the rows'
// sum is the total. What lies between two ops (the caller's own code) counts to the second one.
//
//   Profiler profiler;
//   model.forward(images, context); ...
//   for (const ProfileRow& row : profiler.rows()) ...
//
// A profiler belongs to its thread, and changes no result. Without one, an op pays for a look at a pointer.
// Read next: apps/training/profile_report.h (the table).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace polygrad {

struct ProfileRow {
  std::string phase;  // "forward", "backward", or a ProfilePhase's name
  std::string op;     // as in the op's errors; "accumulate": gradients added up; "other": no op
  std::string path;   // of the module, as Scope::path() has it; "" outside of all
  std::int64_t calls = 0;
  std::int64_t nanoseconds = 0;
  double operations = 0;                 // of matrix products: two for each multiply-add that was computed
  std::int64_t product_nanoseconds = 0;  // within products, added up over the threads
  double bytes = 0;                      // of operands and results: what a perfect cache would read and write
};

class Profiler {
 public:
  // Starts measuring this thread; an outer profiler of the thread rests meanwhile. Must end on the same thread.
  Profiler();
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Marks the time up to now as "other", and returns all rows, in the order in which they first appeared.
  std::vector<ProfileRow> rows();
  // Forgets what was measured and starts anew.
  void reset();

  struct State;

 private:
  std::unique_ptr<State> state_;
  State* outer_;
};

// While one is alive, what this thread's profiler sees belongs to the phase of this name (a string literal).
class ProfilePhase {
 public:
  explicit ProfilePhase(const char* name);
  ~ProfilePhase();
  ProfilePhase(const ProfilePhase&) = delete;
  ProfilePhase& operator=(const ProfilePhase&) = delete;

 private:
  const char* outer_;
};

// Says that what was done since the last mark was `op` (a string literal), for work that is no op.
void profile_mark(const char* op);

}  // namespace polygrad

// The thread pool: parallel_for, whose results do not depend on the number of threads.
//
// Promises: the range is cut into chunks of `grain` (the last may be shorter), whatever the number of threads; every
// participant runs with the same floating-point state (round to nearest, no flush to zero); nested calls run serially
// in their thread; several host threads may call at once; of several exceptions the lowest chunk's is rethrown in the
// caller; with one thread the pool is never touched; where the system refuses a thread, fewer take part. A kernel that
// reduces keeps one partial result per chunk and adds them in chunk order. The pool never touches the host's OpenMP
// settings. Read next: parallel.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "engine/tensor_ref.h"

namespace polygrad {

// A non-owning reference to a callable void(begin, end).
class RangeFunction {
 public:
  template <class F>
  POLYGRAD_INLINE RangeFunction(const F& function)  // NOLINT: implicit, so that a lambda can be passed
      : object_(&function), call_([](const void* object, std::int64_t begin, std::int64_t end) {
          (*static_cast<const F*>(object))(begin, end);
        }) {}
  POLYGRAD_INLINE void operator()(std::int64_t begin, std::int64_t end) const { call_(object_, begin, end); }

 private:
  const void* object_;
  void (*call_)(const void*, std::int64_t, std::int64_t);
};

// Calls function(b, e) for consecutive chunks [b, e) of at most `grain` elements that cover [begin, end), in any order
// and at the same time. grain >= 1.
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain, RangeFunction function);

// The number of threads this thread's calls use: the innermost guard's, else set_num_threads', else the quota of the
// machine or container (not the OMP_* variables).
int num_threads();
// For all host threads without a guard; n >= 1, or 0 for the default. Throws ValueError for a negative n.
void set_num_threads(int n);
// The cores this process may use: affinity mask and cgroup quota considered.
int default_num_threads();

// Calls of this thread use n threads while the guard lives (1: no pool at all).
class NumThreadsGuard {
 public:
  explicit NumThreadsGuard(int n);
  ~NumThreadsGuard();
  NumThreadsGuard(const NumThreadsGuard&) = delete;
  NumThreadsGuard& operator=(const NumThreadsGuard&) = delete;

 private:
  int previous_;
};

// The floating-point state all kernels run in: round to nearest, denormals kept. Restores the caller's at the end.
class FloatingPointGuard {
 public:
  FloatingPointGuard();
  ~FloatingPointGuard();
  FloatingPointGuard(const FloatingPointGuard&) = delete;
  FloatingPointGuard& operator=(const FloatingPointGuard&) = delete;

 private:
  std::uint32_t previous_;
};

}  // namespace polygrad

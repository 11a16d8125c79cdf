// Where the profiler looks in: called by autograd.cpp, by the pool and by the door of matrix products.
// Internal: not installed.
//
// Declarations only, no body: the kernel files include this too. On a thread without a Profiler each is one look at a
// thread-local pointer. Read next: profile.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace polygrad {

class Tensor;

namespace detail {

// What a thread, and the pool's threads for it, do: multiply-adds, the time in products, the time in parallel_for.
struct WorkCounter;
WorkCounter* work_counter();  // of this thread: whose work it does; null where nobody counts
void set_work_counter(WorkCounter* counter);

// Around a product of the provider, and around a thread's part of a parallel_for (a nested one counts once): what the
// first returns goes to the second.
std::int64_t product_begins() noexcept;
void product_ends(std::int64_t begin, std::int64_t multiply_adds) noexcept;
std::int64_t chunks_begin() noexcept;
void chunks_end(std::int64_t begin) noexcept;

// Whether this thread has a Profiler.
bool profiling();
// An op's front, or the gradient's rule of `op` in the module at `path`, has ended: the time since the last mark is
// its. The tensors only tell how many bytes were moved.
void profile_op(const char* op, const Tensor& output, const Tensor* inputs, std::size_t count);
void profile_rule(const char* op, const char* path, const Tensor& gradient, const Tensor* results, std::size_t count);

}  // namespace detail
}  // namespace polygrad

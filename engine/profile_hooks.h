// Where the profiler looks in: called by autograd.cpp, by the pool and by the door of matrix products. Internal: not
// installed.
//
// Declarations only, and no body: the kernel files include this too. With no Profiler on the thread each of these
// is one look at a thread-local pointer. Read next: profile.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace polygrad {

class Tensor;

namespace detail {

// Counts the products that a thread, and the pool's threads for it, compute: multiply-adds and time.
struct ProductCounter;
ProductCounter* product_counter();
void set_product_counter(ProductCounter* counter);
// Around a product: what the first returns goes to the second.
std::int64_t product_begins() noexcept;
void product_ends(std::int64_t begin, std::int64_t multiply_adds) noexcept;

// Whether this thread has a Profiler.
bool profiling();
// An op's front has ended: the time since the last mark is its. Tensors only to count their bytes.
void profile_op(const char* op, const Tensor& output, const Tensor* inputs, std::size_t count);
// As profile_mark() of profile.h, for the module at `path`.
void profile_mark_at(const char* op, const char* path, double bytes);
// Elements in memory that are read or written; 0 for an undefined tensor.
double bytes_of(const Tensor& tensor);

}  // namespace detail
}  // namespace polygrad

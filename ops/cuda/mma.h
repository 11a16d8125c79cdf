// Tensor cores: the warp's matrix instructions, the loads that feed them, and asynchronous copies into shared memory.
// Every line of PTX in ops/cuda stands here.
//
// Where this stands: below attention_mma.h. All functions are called by whole warps. Layouts are those of the PTX
// manual ("Matrix Fragments for mma.m16n8k16"): with g = lane / 4 and q = lane % 4,
//   c (16, 8):  c[0], c[1]: row g, columns 2q, 2q + 1;           c[2], c[3]: row g + 8
//   a (16, 16): a[0]: row g, columns 2q, 2q + 1; a[1]: row g + 8; a[2], a[3]: as a[0], a[1], 8 columns further
//   b (16, 8):  b0: rows 2q, 2q + 1 of column g;                 b1: 8 rows further
// So two neighbouring c are, rounded and packed, one a.
// On a CPU (tests/cuda/host) each instruction is a meeting of the warp's lanes, where the last to come does it for all;
// a copy arrives when it is waited for, and not before, and lanes that would meet in a bank are an error.
// Read next: attention_mma.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/element.h"

#if defined(__CUDACC__) || defined(POLYGRAD_HOST_CUDA)

#if defined(POLYGRAD_HOST_CUDA)
#include <cmath>
#include <cstring>
#endif

namespace polygrad::cuda::mma {

// A place in shared memory, in bytes.
#if defined(POLYGRAD_HOST_CUDA)
using Address = std::uintptr_t;
inline Address address_of(const void* shared) { return reinterpret_cast<Address>(shared); }
#else
using Address = std::uint32_t;
__device__ __forceinline__ Address address_of(const void* shared) {
  return static_cast<Address>(__cvta_generic_to_shared(shared));
}
#endif

#if defined(POLYGRAD_HOST_CUDA)

namespace host {

template <class T>
float number_of(std::uint32_t pair, int half) {
  return widen(T{static_cast<std::uint16_t>(half != 0 ? pair >> 16 : pair)});
}

struct Product {
  float* c;
  const std::uint32_t *a, *b;
};
template <class T>
void multiply_all(void* const (&lanes)[32]) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const Product& own = *static_cast<const Product*>(lanes[lane]);
    for (int half = 0; half < 2; ++half) {
      const int g = lane / 4, q = lane % 4 * 2 + half;
      for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][q + i / 2 * 8] = number_of<T>(own.a[i], half);
      for (int i = 0; i < 2; ++i) b[q + i * 8][g] = number_of<T>(own.b[i], half);
    }
  }
  float c[16][8] = {};
  for (int k = 0; k < 16; ++k) {
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) c[i][j] += a[i][k] * b[k][j];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    float* own = static_cast<const Product*>(lanes[lane])->c;
    for (int i = 0; i < 4; ++i) own[i] += c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

struct Load {
  std::uint32_t* to;
  Address from;
};
template <bool kTransposed>
void load_all(void* const (&lanes)[32]) {
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::uint16_t rows[8][8];
    unsigned banks = 0;
    for (int row = 0; row < 8; ++row) {
      const Address from = static_cast<const Load*>(lanes[matrix * 8 + row])->from;
      if (from % 16 != 0) host_cuda::give_up("ldmatrix: a row begins at no multiple of 16 bytes");
      banks |= 1u << from / 16 % 8;
      std::memcpy(rows[row], reinterpret_cast<const void*>(from), 16);
    }
    if (banks != 0xff) host_cuda::give_up("ldmatrix: rows of a matrix share banks");
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, q = lane % 4 * 2;
      const std::uint32_t low = kTransposed ? rows[q][g] : rows[g][q];
      const std::uint32_t high = kTransposed ? rows[q + 1][g] : rows[g][q + 1];
      static_cast<const Load*>(lanes[lane])->to[matrix] = low | high << 16;
    }
  }
}

struct Copy {
  void* to;
  unsigned char bytes[16];
};
// Of each thread: what it has started to copy.
struct Pending {
  static constexpr int kMost = 512;
  std::uint64_t block = 0;
  Copy copies[kMost];
  int count = 0;
};
inline Pending& pending() {
  static Pending all[1024];
  Pending& own = all[threadIdx.x];
  if (own.block != host_cuda::block_number()) own.count = 0;
  own.block = host_cuda::block_number();
  return own;
}

}  // namespace host

#endif

// Two numbers, rounded: the first in the lower half.
template <class T>
__device__ __forceinline__ std::uint32_t pack(float first, float second) {
#if defined(POLYGRAD_HOST_CUDA)
  return store<T>(first).bits | static_cast<std::uint32_t>(store<T>(second).bits) << 16;
#else
  std::uint32_t pair;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
#endif
}

// c += a·b, with products and sums in f32.
template <class T>
__device__ __forceinline__ void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
#if defined(POLYGRAD_HOST_CUDA)
  const std::uint32_t b[2] = {b0, b1};
  host::Product own{c, a, b};
  host_cuda::meet(&own, host::multiply_all<T>);
#else
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#endif
}

// Four 8 x 8 matrices: lanes 8m ... 8m + 7 name the rows of matrix m, each 16 bytes at a multiple of 16. Register m
// then holds matrix m: row g, columns 2q and 2q + 1; transposed: rows 2q and 2q + 1 of column g.
__device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], Address row) {
#if defined(POLYGRAD_HOST_CUDA)
  host::Load own{to, row};
  host_cuda::meet(&own, host::load_all<false>);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
#endif
}
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&to)[4], Address row) {
#if defined(POLYGRAD_HOST_CUDA)
  host::Load own{to, row};
  host_cuda::meet(&own, host::load_all<true>);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
#endif
}

// Starts to copy 16 bytes into shared memory, or zeros where `present` is false (then `from` is not read, but must be
// an address of global memory). They are there after wait_for_copies() of this thread and a barrier.
__device__ __forceinline__ void copy_async(Address to, const void* from, bool present) {
#if defined(POLYGRAD_HOST_CUDA)
  host::Pending& pending = host::pending();
  if (to % 16 != 0 || reinterpret_cast<std::uintptr_t>(from) % 16 != 0) {
    host_cuda::give_up("cp.async: no multiple of 16 bytes");
  }
  if (pending.count == host::Pending::kMost) host_cuda::give_up("cp.async: too many copies that nobody waits for");
  host::Copy& copy = pending.copies[pending.count++];
  copy = {reinterpret_cast<void*>(to), {}};
  if (present) std::memcpy(copy.bytes, from, 16);
  std::memset(copy.to, 0xff, 16);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(present ? 16 : 0) : "memory");
#endif
}
__device__ __forceinline__ void wait_for_copies() {
#if defined(POLYGRAD_HOST_CUDA)
  host::Pending& pending = host::pending();
  for (int i = 0; i < pending.count; ++i) std::memcpy(pending.copies[i].to, pending.copies[i].bytes, 16);
  pending.count = 0;
#else
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// 2^x; 0 for -infinity. Off by 2 ulp.
__device__ __forceinline__ float exp2(float x) {
#if defined(POLYGRAD_HOST_CUDA)
  return std::exp2(x);
#else
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

// x, of which the compiler knows no more: what is computed with it stays in the branch where it stands, and takes no
// registers outside.
__device__ __forceinline__ int unknown(int x) {
#if !defined(POLYGRAD_HOST_CUDA)
  asm volatile("" : "+r"(x));
#endif
  return x;
}

}  // namespace polygrad::cuda::mma

#endif

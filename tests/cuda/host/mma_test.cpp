// The CPU's twins of the tensor cores' instructions (ops/cuda/mma.h): their fragments fit together as the PTX manual
// says, and what a GPU would forgive, or get wrong now and then, is an error.
#include <doctest/doctest.h>

#include <cuda_runtime.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/backend/cuda/block.h"
#include "ops/cuda/mma.h"
#include "tests/cuda/host/fibers.h"

using namespace polygrad;
using namespace polygrad::cuda;

namespace {

template <class... Parameters, class... Arguments>
std::string run_warp(void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchConfig_t config;
  config.gridDim = dim3(1);
  config.blockDim = dim3(32);
  config.dynamicSmemBytes = 8192;
  return host_cuda::run_grid(config, [=] { kernel(arguments...); });
}

constexpr int kPitch = 48;  // bytes from row to row: three pieces, so that eight rows meet no bank twice

// c = a·b for 16 x 16 matrices; right_down: b is given transposed, row by column.
template <class T>
__global__ void product(const T* a, const T* b, bool right_down, bool waits, float* c) {
  const int lane = static_cast<int>(threadIdx.x), row = lane % 16, piece = lane / 16;
  unsigned char* const shared = dynamic_shared();
  const auto at = [&](int matrix, int r, int p) {
    return mma::address_of(shared + (matrix * 16 + r) * kPitch + p * 16);
  };
  mma::copy_async(at(0, row, piece), a + row * 16 + piece * 8, true);
  mma::copy_async(at(1, row, piece), b + row * 16 + piece * 8, true);
  if (waits) mma::wait_for_copies();
  __syncthreads();
  std::uint32_t left[4], right[4];
  mma::load_matrices(left, at(0, row, piece));
  if (right_down) {
    mma::load_matrices(right, at(1, lane / 16 * 8 + lane % 8, lane / 8 % 2));
  } else {
    mma::load_matrices_transposed(right, at(1, row, piece));
  }
  for (int half = 0; half < 2; ++half) {
    float sums[4] = {};
    mma::multiply<T>(sums, left, right[2 * half], right[2 * half + 1]);
    for (int i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 16 + half * 8 + lane % 4 * 2 + i % 2] = sums[i];
  }
}

__global__ void load_from(int step) {
  std::uint32_t to[4];
  mma::load_matrices(to, mma::address_of(dynamic_shared()) + threadIdx.x * static_cast<unsigned>(step));
}

__global__ void copy_to(int offset, const float* from) {
  mma::copy_async(mma::address_of(dynamic_shared()) + static_cast<unsigned>(offset), from, true);
}

template <class T>
void check_product() {
  std::vector<T> a(256), b(256), turned(256);
  std::vector<float> expected(256, 0), got(256);
  for (std::size_t i = 0; i < 256; ++i) {
    a[i] = store<T>(static_cast<float>(i * 37 % 64) - 31);
    b[i] = store<T>(static_cast<float>(i * 23 % 32) - 15);
  }
  for (std::size_t i = 0; i < 256; ++i) turned[i] = b[i % 16 * 16 + i / 16];
  for (std::size_t i = 0; i < 256; ++i) {
    for (std::size_t k = 0; k < 16; ++k) expected[i] += widen(a[i / 16 * 16 + k]) * widen(b[k * 16 + i % 16]);
  }
  CHECK(run_warp(product<T>, a.data(), b.data(), false, true, got.data()) == "");
  CHECK(got == expected);
  CHECK(run_warp(product<T>, a.data(), turned.data(), true, true, got.data()) == "");
  CHECK(got == expected);
  CHECK(run_warp(product<T>, a.data(), b.data(), false, false, got.data()) == "");
  for (const float x : got) CHECK(std::isnan(x));  // nobody waited for the copies
}

}  // namespace

TEST_CASE("the matrix instructions' fragments fit together, and copies come when they are waited for") {
  check_product<BFloat16>();
  check_product<Float16>();
}

TEST_CASE("loads that meet in a bank, and addresses that are no multiple of 16 bytes, are errors") {
  const std::vector<float> from(8);
  CHECK(run_warp(load_from, kPitch) == "");
  CHECK(run_warp(load_from, 128).find("ldmatrix: rows of a matrix share banks") != std::string::npos);
  CHECK(run_warp(load_from, 8).find("ldmatrix: a row begins at no multiple of 16 bytes") != std::string::npos);
  CHECK(run_warp(copy_to, 8, from.data()).find("cp.async: no multiple of 16 bytes") != std::string::npos);
}

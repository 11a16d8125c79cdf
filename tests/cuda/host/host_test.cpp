// The CPU's CUDA runtime itself: it must notice what it is there to notice. Each of these kernels has a fault of one
// kind.
#include <doctest/doctest.h>

#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/launch.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "tests/cuda/gpu.h"
#include "tests/cuda/host/fibers.h"
#include "tests/cuda/host/host_cuda.h"

using namespace polygrad;
using namespace polygrad::cuda;
using polygrad::testing::gpu;

namespace {

// Runs a kernel at once: "" or what the runtime says.
template <class... Parameters, class... Arguments>
std::string run(int blocks, int threads, void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchConfig_t config;
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = 1024;
  return host_cuda::run_grid(config, [=] { kernel(arguments...); });
}

class OrderGuard {
 public:
  explicit OrderGuard(host_cuda::Order order) { host_cuda::settings().order = order; }
  ~OrderGuard() { host_cuda::settings().order = host_cuda::Order::ascending; }
};

__global__ void number(int* out) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = static_cast<int>(blockIdx.x * 1000 + threadIdx.x);
}

__global__ void reverse_in_block(int* out) {
  int* shared = reinterpret_cast<int*>(dynamic_shared());
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

__global__ void reverse_without_barrier(int* out) {
  int* shared = reinterpret_cast<int*>(dynamic_shared());
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  out[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

__global__ void barrier_for_some() {
  if (threadIdx.x < 40) __syncthreads();
}

__global__ void two_barriers() {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void shuffle_without_a_lane(int* out) {
  if (threadIdx.x % 32 == 5) return;
  out[threadIdx.x] = __shfl_xor_sync(kAllLanes, 1, 1);
}

__global__ void shuffle_of_half(int* out) {
  if (threadIdx.x % 32 >= 16) return;
  out[threadIdx.x] = __shfl_xor_sync(0xffffu, static_cast<int>(threadIdx.x), 1);
}

__global__ void sums(double* out) {
  const double value = static_cast<double>(threadIdx.x) + 0.5;
  const double warp = warp_sum(value), block = block_sum<96>(value), again = block_sum<96>(2 * value);
  out[threadIdx.x] = warp + 1000 * block + 1000000 * again;
}

__global__ void votes(unsigned* out) {
  const unsigned odd = __ballot_sync(kAllLanes, threadIdx.x % 2), same = __match_any_sync(kAllLanes, threadIdx.x % 3);
  out[threadIdx.x] = threadIdx.x % 2 == 0 ? odd : same;
}

__global__ void write_at(int* place, int index) { place[index] = 1; }

// Whether the process that runs `work` is stopped by a segmentation fault.
template <class Work>
bool crashes(const Work& work) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    work();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

}  // namespace

TEST_CASE("blocks, threads and barriers") {
  std::vector<int> out(192, -1);
  CHECK(run(3, 64, number, out.data()) == "");
  for (int i = 0; i < 192; ++i) CHECK(out[static_cast<std::size_t>(i)] == i / 64 * 1000 + i % 64);
  for (const auto order : {host_cuda::Order::ascending, host_cuda::Order::descending}) {
    const OrderGuard guard(order);
    CHECK(run(1, 64, reverse_in_block, out.data()) == "");
    for (int i = 0; i < 64; ++i) CHECK(out[static_cast<std::size_t>(i)] == 63 - i);
  }
}

TEST_CASE("a missing barrier shows in one order of the threads or the other") {
  std::vector<int> ascending(64), descending(64);
  CHECK(run(1, 64, reverse_without_barrier, ascending.data()) == "");
  const OrderGuard guard(host_cuda::Order::descending);
  CHECK(run(1, 64, reverse_without_barrier, descending.data()) == "");
  CHECK(ascending != descending);
}

TEST_CASE("barriers and warp operations that not all threads reach are errors") {
  std::vector<int> out(64);
  CHECK(run(1, 64, barrier_for_some).find("threads wait for others that don't come: 0-39 at") != std::string::npos);
  CHECK(run(1, 64, two_barriers).find("threads of a block wait at different barriers") != std::string::npos);
  CHECK(run(1, 32, shuffle_without_a_lane, out.data()).find("5-5 ended") != std::string::npos);
  CHECK(run(1, 64, shuffle_of_half, out.data()) == "");
  CHECK(out[2] == 3);
}

TEST_CASE("reductions and votes") {
  for (const auto order : {host_cuda::Order::ascending, host_cuda::Order::descending}) {
    const OrderGuard guard(order);
    std::vector<double> out(96);
    CHECK(run(1, 96, sums, out.data()) == "");
    for (int i = 0; i < 96; ++i) {
      const double warp = 32 * (i / 32 * 32 + 16);
      CHECK(out[static_cast<std::size_t>(i)] == warp + 1000 * 4608.0 + 1000000 * 9216.0);
    }
    std::vector<unsigned> bits(32);
    CHECK(run(1, 32, votes, bits.data()) == "");
    CHECK(bits[0] == 0xaaaaaaaau);
    CHECK(bits[1] == 0x92492492u);
  }
}

TEST_CASE("device memory ends where it ends, and is closed to the host") {
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 64) == cudaSuccess);
  int* ints = static_cast<int*>(memory);
  select(0);
  const auto write = [&](int index) {
    launch("write_at", {}, 32, 0, write_at, ints, index);
    context().synchronize();
  };
  CHECK_FALSE(crashes([&] { write(15); }));
  CHECK(crashes([&] { write(16); }));
  CHECK(crashes([&] { ints[0] = 1; }));
  CHECK(cudaFree(memory) == cudaSuccess);
  CHECK(crashes([&] { write(0); }));
}

TEST_CASE("work is done late: what a kernel reads must live until somebody waits") {
  Tensor x = full({8}, 1, {.device = gpu()});
  const std::uint64_t before = host_cuda::counts().waits;
  for (int i = 0; i < 5; ++i) x = x.clone();
  CHECK(host_cuda::counts().waits == before);  // no operation waits
  CHECK(x.to_vector<float>() == std::vector<float>(8, 1));
  CHECK(host_cuda::counts().waits > before);
}

TEST_CASE("a launch that a GPU would refuse") {
  select(0);
  CHECK_THROWS_WITH_AS(
      launch("wide", {}, 2048, 0, barrier_for_some),
      "[cuda] kernel wide failed: cudaErrorInvalidConfiguration (cudaErrorInvalidConfiguration); grid 1 "
      "x 1 x 1, 2048 threads, 0 bytes of shared memory",
      CudaError);
  CHECK_THROWS_AS(launch("much", {}, 32, 60000, barrier_for_some), CudaError);
  CHECK_THROWS_AS(launch("many", {.y = 70000}, 32, 0, barrier_for_some), InternalError);
  launch("none", {.x = 0}, 32, 0, barrier_for_some);
  context().synchronize();
}

TEST_CASE("what is said where there is no device, or no kernel for it") {
  const auto message = [] {
    const pid_t child = fork();  // a device that was looked at once is known
    if (child == 0) {
      host_cuda::settings().devices = 3;
      host_cuda::settings().has_image = false;
      try {
        check_device(Device::cuda(2));
      } catch (const DeviceError& error) {
        _exit(std::string(error.what()) ==
                      "[device] this build has kernels for sm_90, but cuda:2 (the CPU) is sm_90; configure with "
                      "-DCMAKE_CUDA_ARCHITECTURES=90"
                  ? 0
                  : 1);
      }
      _exit(2);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  };
  CHECK(message() == 0);
  host_cuda::settings().devices = 0;
  CHECK(cuda_device_count() == 0);
  CHECK_THROWS_WITH_AS(check_device(Device::cuda(1)),
                       "[device] no CUDA device was found: there is no NVIDIA driver; use the CPU (--device cpu)",
                       DeviceError);
  host_cuda::settings().devices = 1;
}

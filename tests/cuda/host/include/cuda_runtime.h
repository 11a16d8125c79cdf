// A CUDA runtime for the CPU, as small as the house needs: with it in front of the include path a C++ compiler
// understands our .cu files, and their kernels run in `make test`, on machines without a GPU.
//
// Where this stands: in place of NVIDIA's header; never beside it. See docs/cuda.md for what it proves and what not.
// How kernels run: a block's threads are fibers that change places at barriers and warp operations (fibers.cpp). How
// streams run: work is done as late as CUDA permits, when somebody waits, so that a missing event shows; device memory
// can't be touched outside kernels and copies, and ends at a guard page (runtime.cpp).
// Read next: host_cuda.h (what tests switch), fibers.cpp, runtime.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <string>
#include <tuple>
#include <type_traits>

// --- words of the language ------------------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static  // one block runs at a time

struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Of the thread that runs now.
inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

// --- inside kernels -------------------------------------------------------------------------------------------------

namespace host_cuda {

// Where in the source an operation stands that threads must reach together.
using Site = std::source_location;

void barrier(const Site& site);
// Puts value into the lane's slot, waits for all lanes of the mask, and reads the slot of lane `from`.
std::uint64_t exchange(unsigned mask, std::uint64_t value, int from, const Site& site);
// As exchange, and gives the slots of all lanes of the mask (others: undefined).
const std::uint64_t* gather(unsigned mask, std::uint64_t value, const Site& site);
// All lanes of a warp meet; the last to come calls work with the pointers of all of them, before any goes on.
void meet(void* own, void (*work)(void* const (&lanes)[32]), const Site& site = Site::current());
// Ends the block, and with it the grid: a kernel's fault.
[[noreturn]] void give_up(const std::string& what);
unsigned char* dynamic_shared();
int lane();
std::uint64_t block_number();  // of the block that runs, among all that ever did

template <class T>
T shuffle(unsigned mask, T value, int from, const Site& site) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = exchange(mask, bits, from, site);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace host_cuda

inline void __syncthreads(const host_cuda::Site& site = host_cuda::Site::current()) { host_cuda::barrier(site); }
inline void __syncwarp(unsigned mask = 0xffffffffu, const host_cuda::Site& site = host_cuda::Site::current()) {
  host_cuda::exchange(mask, 0, host_cuda::lane(), site);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int = 32, const host_cuda::Site& site = host_cuda::Site::current()) {
  return host_cuda::shuffle(mask, value, from & 31, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int = 32,
                  const host_cuda::Site& site = host_cuda::Site::current()) {
  return host_cuda::shuffle(mask, value, host_cuda::lane() ^ with, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, int by, int = 32, const host_cuda::Site& site = host_cuda::Site::current()) {
  const int from = host_cuda::lane() + by;
  return host_cuda::shuffle(mask, value, from < 32 ? from : host_cuda::lane(), site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int by, int = 32, const host_cuda::Site& site = host_cuda::Site::current()) {
  const int from = host_cuda::lane() - by;
  return host_cuda::shuffle(mask, value, from >= 0 ? from : host_cuda::lane(), site);
}
unsigned __ballot_sync(unsigned mask, int predicate, const host_cuda::Site& site = host_cuda::Site::current());
inline int __any_sync(unsigned mask, int predicate, const host_cuda::Site& site = host_cuda::Site::current()) {
  return __ballot_sync(mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, const host_cuda::Site& site = host_cuda::Site::current()) {
  return __ballot_sync(mask, predicate, site) == mask;
}
unsigned __match_any_sync(unsigned mask, unsigned long long value,
                          const host_cuda::Site& site = host_cuda::Site::current());
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline void __threadfence() {}

template <class T>
T atomicAdd(T* place, T value) {
  const T before = *place;
  *place = before + value;
  return before;
}
template <class T>
T atomicMin(T* place, T value) {
  const T before = *place;
  if (value < before) *place = value;
  return before;
}
template <class T>
T atomicMax(T* place, T value) {
  const T before = *place;
  if (value > before) *place = value;
  return before;
}
template <class T>
T atomicCAS(T* place, T expected, T value) {
  const T before = *place;
  if (before == expected) *place = value;
  return before;
}

// --- the runtime ----------------------------------------------------------------------------------------------------

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorUnsupportedPtxVersion = 222,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
  cudaErrorStreamCaptureUnsupported = 900,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
inline constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2;
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

namespace host_cuda {
struct StreamState;
struct EventState;
struct GraphState;
}  // namespace host_cuda
using cudaStream_t = host_cuda::StreamState*;
using cudaEvent_t = host_cuda::EventState*;
using cudaGraph_t = host_cuda::GraphState*;
using cudaGraphExec_t = host_cuda::GraphState*;
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };

struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount;
  std::size_t sharedMemPerBlockOptin;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};
struct cudaFuncAttributes {
  int numRegs;
};

const char* cudaGetErrorName(cudaError_t status);
const char* cudaGetErrorString(cudaError_t status);
cudaError_t cudaGetLastError();
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaMalloc(void** pointer, std::size_t bytes);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaMallocHost(void** pointer, std::size_t bytes);
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* pointer, int value, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t earlier, cudaEvent_t later);
cudaError_t cudaEventDestroy(cudaEvent_t event);
// Between these two a stream keeps what it is given for the graph. Stricter than CUDA: events, waits and copies from or
// to the host are refused there.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

namespace host_cuda {
cudaError_t enqueue(const void* kernel, const cudaLaunchConfig_t& config, std::function<void()> thread);
cudaError_t find_image();
cudaError_t raise_shared_limit(const void* kernel, int bytes);
}  // namespace host_cuda

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  return host_cuda::enqueue(
      reinterpret_cast<const void*>(kernel), *config,
      [kernel, copies = std::tuple<std::decay_t<Parameters>...>(arguments...)] { std::apply(kernel, copies); });
}
template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, Kernel) {
  return host_cuda::find_image();
}
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel kernel, cudaFuncAttribute, int bytes) {
  return host_cuda::raise_shared_limit(reinterpret_cast<const void*>(kernel), bytes);
}

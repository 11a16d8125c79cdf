// The CPU's CUDA runtime: memory, streams and events.
//
// Work is done as late as CUDA permits: a stream keeps a list, which runs when the host waits for it, or another stream
// does through an event. So a pinned buffer that is filled again too early, or a block of memory that another stream
// still uses, gives wrong numbers here, and not once a week on a machine with a GPU.
// A device's memory can't be touched outside kernels and copies: host code that follows a device's pointer stops with
// a segmentation fault, as does a kernel that leaves its memory at the end, and whoever uses memory that was freed.
#include <sys/mman.h>

#include <chrono>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/cuda/host/fibers.h"
#include "tests/cuda/host/host_cuda.h"

namespace host_cuda {

Settings& settings() {
  static Settings settings;
  return settings;
}
Counts& counts() {
  static Counts counts;
  return counts;
}

struct EventState {
  StreamState* stream = nullptr;
  std::uint64_t ticket = 0;      // of the stream's list, up to which it must have run
  std::shared_ptr<double> time;  // seconds; NaN until the stream came by. Null: not asked for
};

struct Task {
  std::function<void()> work;
};

struct GraphState {
  std::vector<std::function<void()>> work;
};

struct StreamState {
  GraphState* capturing = nullptr;
  std::deque<Task> list;
  std::uint64_t done = 0, given = 0;
};

namespace {

constexpr std::size_t kPage = 4096;

std::recursive_mutex mutex;
std::vector<StreamState*> streams;
cudaError_t last_error = cudaSuccess;
std::string failure;  // of the kernel that failed; like a real one it spoils the device

struct Region {
  char* base;
  std::size_t pages, bytes;
};
std::map<void*, Region> regions;
std::size_t memory_in_use = 0;
std::set<std::pair<const char*, const char*>> pinned;
std::unordered_map<const void*, int> shared_limits;

cudaError_t remember(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

// A protection key closes and opens all device memory at once, without a system call; where the CPU has none, each
// region's access is changed.
int protection_key() {
  static const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
  return key;
}

// Device memory is open, to this thread, while one lives.
class Open {
 public:
  Open() {
    if (depth_++ == 0) change(PROT_READ | PROT_WRITE, 0);
  }
  ~Open() {
    if (--depth_ == 0) change(PROT_NONE, PKEY_DISABLE_ACCESS);
  }

 private:
  static void change(int access, unsigned rights) {
    if (protection_key() >= 0) {
      pkey_set(protection_key(), rights);
    } else {
      for (const auto& [pointer, region] : regions) mprotect(region.base, region.pages * kPage, access);
    }
  }
  static inline int depth_ = 0;
};

void run_until(StreamState& stream, std::uint64_t ticket) {
  const Open open;
  while (stream.done < ticket) {
    Task task = std::move(stream.list.front());
    stream.list.pop_front();
    ++stream.done;
    task.work();
  }
}

void run_all() {
  for (StreamState* stream : streams) run_until(*stream, stream->given);
}

cudaError_t give(cudaStream_t stream, std::function<void()> work) {
  if (stream == nullptr) return remember(cudaErrorInvalidValue);  // the house uses no default stream
  if (stream->capturing != nullptr) {
    stream->capturing->work.push_back(std::move(work));
    return cudaSuccess;
  }
  stream->list.push_back({std::move(work)});
  ++stream->given;
  return failure.empty() ? cudaSuccess : remember(cudaErrorLaunchFailure);
}

bool is_device(const void* pointer, std::size_t bytes) {
  auto region = regions.upper_bound(const_cast<void*>(pointer));
  if (region == regions.begin()) return false;
  --region;
  const char* begin = static_cast<const char*>(region->first);
  const char* at = static_cast<const char*>(pointer);
  return at >= begin && at + bytes <= begin + region->second.bytes;
}

bool is_pinned(const void* pointer, std::size_t bytes) {
  const char* at = static_cast<const char*>(pointer);
  for (const auto& [begin, end] : pinned) {
    if (at >= begin && at + bytes <= end) return true;
  }
  return false;
}

cudaError_t status_now() { return failure.empty() ? cudaSuccess : remember(cudaErrorLaunchFailure); }

}  // namespace

cudaError_t find_image() { return settings().has_image ? cudaSuccess : remember(cudaErrorNoKernelImageForDevice); }

cudaError_t raise_shared_limit(const void* kernel, int bytes) {
  const std::lock_guard lock(mutex);
  if (bytes > 227 * 1024) return remember(cudaErrorInvalidValue);
  shared_limits[kernel] = bytes;
  return cudaSuccess;
}

cudaError_t enqueue(const void* kernel, const cudaLaunchConfig_t& config, std::function<void()> thread) {
  const std::lock_guard lock(mutex);
  const unsigned threads = config.blockDim.x * config.blockDim.y * config.blockDim.z;
  if (threads == 0 || threads > 1024 || threads % 32 != 0 || threads != config.blockDim.x || config.gridDim.x == 0 ||
      config.gridDim.y == 0 || config.gridDim.z == 0 || config.gridDim.y > 65535 || config.gridDim.z > 65535) {
    return remember(cudaErrorInvalidConfiguration);
  }
  const auto limit = shared_limits.find(kernel);
  if (config.dynamicSmemBytes > static_cast<std::size_t>(limit == shared_limits.end() ? 48 * 1024 : limit->second)) {
    return remember(cudaErrorInvalidValue);
  }
  ++counts().launches;
  return give(config.stream, [config, thread = std::move(thread)] {
    if (!failure.empty()) return;
    failure = run_grid(config, thread);
  });
}

}  // namespace host_cuda

using namespace host_cuda;

const char* cudaGetErrorName(cudaError_t status) {
  switch (status) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDeviceFunction:
      return "cudaErrorInvalidDeviceFunction";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorNoKernelImageForDevice:
      return "cudaErrorNoKernelImageForDevice";
    case cudaErrorUnsupportedPtxVersion:
      return "cudaErrorUnsupportedPtxVersion";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
  }
  return "?";
}
const char* cudaGetErrorString(cudaError_t status) {
  if (status == cudaErrorLaunchFailure) return failure.c_str();
  return cudaGetErrorName(status);
}
cudaError_t cudaGetLastError() {
  const cudaError_t status = last_error;
  last_error = cudaSuccess;
  return status;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = settings().devices > 0 ? 13000 : 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = settings().devices;
  return settings().devices > 0 ? cudaSuccess : remember(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
  return device >= 0 && device < settings().devices ? cudaSuccess : remember(cudaErrorInvalidDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= settings().devices) return remember(cudaErrorInvalidDevice);
  std::strcpy(properties->name, "the CPU");
  properties->major = 9;
  properties->minor = 0;
  properties->multiProcessorCount = settings().multiprocessors;
  properties->sharedMemPerBlockOptin = 227 << 10;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  if (bytes > settings().memory || memory_in_use + bytes > settings().memory)
    return remember(cudaErrorMemoryAllocation);
  const std::size_t pages = (bytes + kPage - 1) / kPage;
  void* base = mmap(nullptr, (pages + 1) * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return remember(cudaErrorMemoryAllocation);
  if (protection_key() >= 0) pkey_mprotect(base, pages * kPage, PROT_READ | PROT_WRITE, protection_key());
  // As near to the guard page as vectors of 16 bytes may begin.
  char* first = static_cast<char*>(base) + (pages * kPage - bytes) / 16 * 16;
  regions[first] = {static_cast<char*>(base), pages, bytes};
  memory_in_use += bytes;
  *pointer = first;
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  const std::lock_guard lock(mutex);
  if (pointer == nullptr) return cudaSuccess;
  run_all();
  const auto region = regions.find(pointer);
  if (region == regions.end()) return remember(cudaErrorInvalidValue);
  munmap(region->second.base, (region->second.pages + 1) * kPage);
  memory_in_use -= region->second.bytes;
  regions.erase(region);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  char* memory = new char[bytes];
  std::memset(memory, 0xff, bytes);
  pinned.insert({memory, memory + bytes});
  *pointer = memory;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  const std::lock_guard lock(mutex);
  run_all();
  for (auto it = pinned.begin(); it != pinned.end(); ++it) {
    if (it->first != pointer) continue;
    pinned.erase(it);
    delete[] static_cast<char*>(pointer);
    return cudaSuccess;
  }
  return remember(cudaErrorInvalidValue);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  if (stream != nullptr && stream->capturing != nullptr && kind != cudaMemcpyDeviceToDevice) {
    return remember(cudaErrorStreamCaptureUnsupported);
  }
  const bool reads_device = kind != cudaMemcpyHostToDevice, writes_device = kind != cudaMemcpyDeviceToHost;
  // From or to pageable memory a copy would not be asynchronous: the house stages.
  if (bytes > 0 && !(reads_device ? is_device(from, bytes) : is_pinned(from, bytes))) {
    return remember(cudaErrorInvalidValue);
  }
  if (bytes > 0 && !(writes_device ? is_device(to, bytes) : is_pinned(to, bytes))) {
    return remember(cudaErrorInvalidValue);
  }
  return give(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}
cudaError_t cudaMemsetAsync(void* pointer, int value, std::size_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  if (bytes > 0 && !is_device(pointer, bytes)) return remember(cudaErrorInvalidValue);
  return give(stream, [=] { std::memset(pointer, value, bytes); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const std::lock_guard lock(mutex);
  *stream = new StreamState;
  streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  if (stream->capturing != nullptr) return remember(cudaErrorStreamCaptureUnsupported);
  ++counts().waits;
  run_until(*stream, stream->given);
  return status_now();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(mutex);
  if (stream->capturing != nullptr) return remember(cudaErrorStreamCaptureUnsupported);
  if (event->stream == nullptr || event->stream == stream) return cudaSuccess;
  return give(stream, [other = event->stream, ticket = event->ticket] { run_until(*other, ticket); });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new EventState;
  if ((flags & cudaEventDisableTiming) == 0) (*event)->time = std::make_shared<double>(NAN);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  if (stream->capturing != nullptr) return remember(cudaErrorStreamCaptureUnsupported);
  event->stream = stream;
  if (event->time) {
    *event->time = NAN;
    give(stream, [time = event->time] {
      *time = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    });
  }
  event->ticket = stream->given;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard lock(mutex);
  ++counts().waits;
  if (event->stream != nullptr) run_until(*event->stream, event->ticket);
  return status_now();
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t earlier, cudaEvent_t later) {
  const std::lock_guard lock(mutex);
  if (!earlier->time || !later->time) return remember(cudaErrorInvalidValue);
  if (std::isnan(*earlier->time) || std::isnan(*later->time)) return remember(cudaErrorNotReady);
  *milliseconds = static_cast<float>(1e3 * (*later->time - *earlier->time));
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard lock(mutex);
  if (stream->capturing != nullptr) return remember(cudaErrorInvalidValue);
  stream->capturing = new GraphState;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(mutex);
  if (stream->capturing == nullptr) return remember(cudaErrorInvalidValue);
  *graph = std::exchange(stream->capturing, nullptr);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new GraphState(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  ++counts().graphs;
  for (const std::function<void()>& work : exec->work) {
    if (const cudaError_t status = give(stream, work); status != cudaSuccess) return status;
  }
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

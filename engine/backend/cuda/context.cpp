#include "engine/backend/cuda/context.h"

#include <atomic>
#include <limits>
#include <mutex>
#include <vector>

#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/status.h"
#include "engine/backend/cuda/transfer.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad::cuda {

// --- failed calls ---------------------------------------------------------------------------------------------------

void fail(cudaError_t status, const char* call, const std::string& what) {
  throw CudaError(format("[cuda] {} failed: {} ({}){}", call, cudaGetErrorString(status), cudaGetErrorName(status),
                         what.empty() ? "" : "; " + what));
}

// --- devices --------------------------------------------------------------------------------------------------------

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // or the next launch would report it
    return 0;
  }
  return count;
}

namespace {

constexpr int kMaxDevices = 64;

std::string no_such_device(int device, int count) {
  if (count > 0) return format("[device] there is no cuda:{}; this machine has {} CUDA device(s)", device, count);
  int driver = 0;
  const bool known = cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
  cudaGetLastError();
  return format("[device] no CUDA device was found: {}; use the CPU (--device cpu)",
                known ? format("the driver ({}.{}) sees none", driver / 1000, driver % 1000 / 10)
                      : std::string("there is no NVIDIA driver"));
}

DeviceProperties look_up(int device) {
  const int count = device_count();
  if (device < 0 || device >= count) throw DeviceError(no_such_device(device, count));
  cudaDeviceProp found;
  check(cudaGetDeviceProperties(&found, device), "cudaGetDeviceProperties");
  DeviceProperties properties;
  properties.name = found.name;
  properties.major = found.major;
  properties.minor = found.minor;
  properties.multiprocessors = found.multiProcessorCount;
  properties.shared_memory_per_block = static_cast<int>(found.sharedMemPerBlockOptin);
  const int selected = selected_device();
  check(cudaSetDevice(device), "cudaSetDevice");
  const cudaError_t status = find_kernel_image();
  if (selected >= 0) check(cudaSetDevice(selected), "cudaSetDevice");
  if (status != cudaSuccess) {
    cudaGetLastError();
    if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction ||
        status == cudaErrorUnsupportedPtxVersion) {
      throw DeviceError(
          format("[device] this build has kernels for {}, but cuda:{} ({}) is sm_{}{}; configure with "
                 "-DCMAKE_CUDA_ARCHITECTURES={}{}",
                 built_architectures(), device, found.name, found.major, found.minor, found.major, found.minor));
    }
    fail(status, "cudaFuncGetAttributes");
  }
  return properties;
}

}  // namespace

const DeviceProperties& device_properties(int device) {
  static std::mutex mutex;
  static std::atomic<const DeviceProperties*> known[kMaxDevices];
  const bool in_table = device >= 0 && device < kMaxDevices;
  if (in_table) {
    if (const DeviceProperties* found = known[device].load(std::memory_order_acquire)) return *found;
  }
  const std::lock_guard lock(mutex);
  const DeviceProperties* found = new DeviceProperties(look_up(device));  // throws for those not in the table
  known[device].store(found, std::memory_order_release);
  return *found;
}

// --- contexts -------------------------------------------------------------------------------------------------------

namespace {

// Contexts that no thread uses now, by device.
struct Idle {
  std::mutex mutex;
  std::vector<Context*> contexts[kMaxDevices];
  static Idle& instance() {
    static Idle* idle = new Idle;
    return *idle;
  }
};

std::atomic<int> next_id{1};

// A thread's contexts. Given back when it ends, with their work done: the next thread may use their memory at once.
struct ThreadContexts {
  Context* of_device[kMaxDevices] = {};
  Context* selected = nullptr;
  ~ThreadContexts() {
    for (int device = 0; device < kMaxDevices; ++device) {
      Context* context = of_device[device];
      if (context == nullptr) continue;
      of_device[device] = nullptr;
      // At the end of the process the runtime may be gone already; then nobody will ask for the context.
      if (cudaStreamSynchronize(context->compute.handle) != cudaSuccess) continue;
      if (cudaStreamSynchronize(context->copy.handle) != cudaSuccess) continue;
      Idle& idle = Idle::instance();
      const std::lock_guard lock(idle.mutex);
      idle.contexts[device].push_back(context);
    }
    selected = nullptr;
  }
};

thread_local ThreadContexts thread_contexts;

Stream make_stream() {
  Stream stream;
  check(cudaStreamCreateWithFlags(&stream.handle, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  stream.id = unused_id();
  return stream;
}

Context* take_context(int device) {
  {
    Idle& idle = Idle::instance();
    const std::lock_guard lock(idle.mutex);
    if (!idle.contexts[device].empty()) {
      Context* context = idle.contexts[device].back();
      idle.contexts[device].pop_back();
      return context;
    }
  }
  return new Context(device);
}

}  // namespace

Context::Context(int device) : device_(device), properties_(device_properties(device)) {
  check(cudaSetDevice(device), "cudaSetDevice");
  compute = make_stream();
  copy = make_stream();
}

Staging& Context::staging() {
  if (!staging_) staging_ = std::make_unique<Staging>();
  return *staging_;
}

Fault* Context::fault() {
  if (fault_ == nullptr) {
    refuse_capture("the first index operation");
    void *place = nullptr, *pinned = nullptr;
    check(cudaMalloc(&place, sizeof(Fault)), "cudaMalloc");
    check(cudaMallocHost(&pinned, sizeof(Fault)), "cudaMallocHost");
    fault_ = static_cast<Fault*>(place);
    fault_copy_ = static_cast<Fault*>(pinned);
    fault_copy_->position = std::numeric_limits<long long>::max();
    check(cudaMemcpyAsync(fault_, fault_copy_, sizeof(Fault), cudaMemcpyHostToDevice, compute.handle),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(compute.handle), "cudaStreamSynchronize");
  }
  return fault_;
}

void Context::check_fault() {
  if (fault_ == nullptr) return;
  check(cudaMemcpyAsync(fault_copy_, fault_, sizeof(Fault), cudaMemcpyDeviceToHost, compute.handle), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(compute.handle), "cudaStreamSynchronize");
  const Fault found = *fault_copy_;
  if (found.position == std::numeric_limits<long long>::max()) return;
  fault_copy_->position = std::numeric_limits<long long>::max();
  check(cudaMemcpyAsync(fault_, fault_copy_, sizeof(Fault), cudaMemcpyHostToDevice, compute.handle), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(compute.handle), "cudaStreamSynchronize");
  throw IndexError(format(
      "[index] the GPU met an index outside its range: the value at position {} of an operation's ids; expected 0 "
      "<= value < {}. The operation was an earlier one: a GPU's fault is seen when somebody waits; on the CPU it "
      "would name itself",
      found.position, found.bound));
}

void Context::refuse_capture(const char* what) const {
  if (pool == 0) return;
  throw InternalError(format("[capture] {} while work is being captured; run it once without a capture first", what));
}

void Context::synchronize_stream() {
  refuse_capture("a wait for the stream");
  check(cudaStreamSynchronize(stream().handle), "cudaStreamSynchronize");
  check_fault();
}

void Context::synchronize() {
  refuse_capture("a wait for the device");
  check(cudaStreamSynchronize(compute.handle), "cudaStreamSynchronize");
  check(cudaStreamSynchronize(copy.handle), "cudaStreamSynchronize");
  check_fault();
}

int unused_id() { return next_id++; }

void select(int device) {
  ThreadContexts& own = thread_contexts;
  if (own.selected != nullptr && own.selected->device() == device) return;
  if (device < 0 || device >= kMaxDevices || own.of_device[device] == nullptr) {
    device_properties(device);  // throws where it can't be used
    own.of_device[device] = take_context(device);
  }
  check(cudaSetDevice(device), "cudaSetDevice");
  own.selected = own.of_device[device];
}

int selected_device() noexcept { return thread_contexts.selected == nullptr ? -1 : thread_contexts.selected->device(); }

Context& context() { return *thread_contexts.selected; }

Context* find_context(int device) { return thread_contexts.of_device[device]; }

// --- events ---------------------------------------------------------------------------------------------------------

Event::Event(Kind kind) {
  check(cudaEventCreateWithFlags(&handle_, kind == Kind::time ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreateWithFlags");
}
Event::~Event() { cudaEventDestroy(handle_); }
void Event::record(const Stream& stream) { check(cudaEventRecord(handle_, stream.handle), "cudaEventRecord"); }
void Event::wait_in(const Stream& stream) const {
  check(cudaStreamWaitEvent(stream.handle, handle_, 0), "cudaStreamWaitEvent");
}
void Event::wait() const { check(cudaEventSynchronize(handle_), "cudaEventSynchronize"); }
double Event::seconds_since(const Event& earlier) const {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, earlier.handle_, handle_), "cudaEventElapsedTime");
  return 1e-3 * static_cast<double>(milliseconds);
}

}  // namespace polygrad::cuda

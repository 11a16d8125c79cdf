// What a host thread uses of a GPU: its streams, its staging memory, and the place where kernels report a fault.
//
// Where this stands: below memory.cpp, transfer.cpp and launch.h. Nothing here is made before a thread first uses a
// tensor on the device. A thread that ends leaves its context, with its streams and the memory that belongs to them, to
// the next thread; contexts are never destroyed, because tensors of static duration may outlive everything.
// Read next: launch.h (how a kernel is started), memory.cpp, transfer.h. Internal: not installed.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace polygrad::cuda {

class Staging;

// What doesn't change about a device.
struct DeviceProperties {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int shared_memory_per_block = 0;  // with the opt-in of cudaFuncSetAttribute
};
// Throws DeviceError where there is no such device, or where this build has no kernels for it ("built for sm_90, cuda:0
// is sm_75"). Looked up once.
const DeviceProperties& device_properties(int device);
// The number of devices; 0 where there is no driver. Never throws.
int device_count();

// A kernel's complaint about its input: written by the first that has one, thrown by the next call that waits.
struct Fault {
  long long position;  // of the first value outside, in row-major order; LLONG_MAX: none
  long long bound;     // expected: 0 <= value < bound
};

struct Stream {
  cudaStream_t handle = nullptr;
  int id = 0;  // unique for the device
};

class Context {
 public:
  explicit Context(int device);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int device() const { return device_; }
  const DeviceProperties& properties() const { return properties_; }
  // The stream that this thread's work goes to now: `compute`, or `copy` under a CopyStreamGuard.
  const Stream& stream() const { return *current_; }
  Stream compute, copy;
  // The allocator's pool of the graph that is being captured (capture.h); 0: none.
  int pool = 0;
  // Throws InternalError where work is being captured: what then happens once would be missing in each replay.
  void refuse_capture(const char* what) const;
  // Pinned memory between the host's and the device's, made at first use.
  Staging& staging();
  // In the device's memory, made at first use.
  Fault* fault();
  // What a library keeps for this context (a handle, its workspace), made by T(device) at first use.
  template <class T>
  T& kept() {
    std::shared_ptr<void>& place = kept_[&kKeptKey<T>];
    if (!place) place = std::make_shared<T>(device_);
    return *static_cast<T*>(place.get());
  }
  // Waits for both streams; throws IndexError for a fault.
  void synchronize();
  // Waits for the current stream only.
  void synchronize_stream();

 private:
  friend class CopyStreamGuard;
  template <class T>
  static inline const char kKeptKey = 0;  // its address names T
  void check_fault();
  int device_;
  const DeviceProperties& properties_;
  const Stream* current_ = &compute;
  std::unique_ptr<Staging> staging_;
  std::map<const void*, std::shared_ptr<void>> kept_;
  Fault* fault_ = nullptr;
  Fault* fault_copy_ = nullptr;  // pinned
};

// A number that no stream has, and no pool of the allocator.
int unused_id();

// Makes `device` the calling thread's; its context is made at the first time.
void select(int device);
// -1 where the thread has selected none.
int selected_device() noexcept;
// Of the selected device. select() has been called.
Context& context();
// Of that device, where this thread has one; else null.
Context* find_context(int device);

// While it lives, this thread's kernels, copies and new blocks belong to the copy stream.
class CopyStreamGuard {
 public:
  explicit CopyStreamGuard(Context& context) : context_(context), previous_(context.current_) {
    context.current_ = &context.copy;
  }
  ~CopyStreamGuard() { context_.current_ = previous_; }
  CopyStreamGuard(const CopyStreamGuard&) = delete;
  CopyStreamGuard& operator=(const CopyStreamGuard&) = delete;

 private:
  Context& context_;
  const Stream* previous_;
};

// A point in a stream, for others to wait for.
class Event {
 public:
  enum class Kind { order, time };
  explicit Event(Kind kind = Kind::order);  // of the selected device; only those of kind time know when they came
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(const Stream& stream);
  void wait_in(const Stream& stream) const;  // the stream waits, the host doesn't
  void wait() const;                         // the host waits
  // Both are of kind time, and have come.
  double seconds_since(const Event& earlier) const;

 private:
  cudaEvent_t handle_ = nullptr;
};

}  // namespace polygrad::cuda

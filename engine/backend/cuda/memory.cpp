// The caching allocator of GPUs: one cache a device, under the interface of engine/memory.h.
//
// A block belongs to the stream of the thread that asked for it. Freed, it waits for the next request of its size in
// that stream, where whatever was started on it comes first anyway: no waiting, no call of the runtime. A block that
// another stream frees carries an event, and its next user's stream waits for that.
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "engine/backend/cuda/capture.h"
#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/status.h"
#include "engine/backend/cuda/transfer.h"
#include "engine/backend/device_memory.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/memory_counters.h"
#include "engine/testing_access.h"

namespace polygrad::cuda {
namespace {

constexpr std::size_t kAlignment = 512;
constexpr std::size_t kAddressable = std::size_t{1} << 47;

struct FreeBlock {
  void* pointer;
  cudaEvent_t ready;  // of another stream's last work on it; null where there is none
};

struct LiveBlock {
  int stream;
  int owner;  // whose free blocks it joins: the stream's, or a pool's
  std::size_t bytes;
  bool cached;  // goes to the cache when it is freed
};

class DeviceCache : public detail::MemoryCounters {
 public:
  explicit DeviceCache(int device) : device_(device) {}

  static DeviceCache& of(int device) {
    static std::mutex mutex;
    static std::map<int, DeviceCache*>* caches = new std::map<int, DeviceCache*>;
    const std::lock_guard lock(mutex);
    DeviceCache*& cache = (*caches)[device];
    if (cache == nullptr) {
      device_properties(device);  // throws where it can't be used
      cache = new DeviceCache(device);
    }
    return *cache;
  }

  void* allocate(std::size_t requested) {
    select(device_);
    const Stream& stream = context().stream();
    allocations.fetch_add(1, std::memory_order_relaxed);
    if (requested > kAddressable) fail(requested, where());
    const int owner = context().pool != 0 ? context().pool : stream.id;
    const bool exact = testing::uncached() && context().pool == 0;
    const std::size_t bytes = exact ? std::max<std::size_t>(requested, 1) : detail::size_class(requested, kAlignment);
    void* pointer = exact ? nullptr : take(stream, owner, bytes);
    if (pointer == nullptr) pointer = allocate_fresh(requested, bytes);
    {
      const std::lock_guard lock(mutex_);
      live_[pointer] = {stream.id, owner, bytes, !exact};
    }
    count_use(bytes);
    if (testing::poisons()) check(cudaMemsetAsync(pointer, 0xff, bytes, stream.handle), "cudaMemsetAsync");
    return pointer;
  }

  void deallocate(void* pointer) noexcept {
    const Context* context = find_context(device_);
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(pointer);
    if (found == live_.end()) return;
    const LiveBlock block = found->second;
    in_use -= block.bytes;
    cached += block.bytes;
    FreeBlock freed{pointer, nullptr};
    bool keep = block.cached;
    if (keep && context != nullptr && context->stream().id != block.stream) {
      keep = take_event(&freed.ready) && cudaEventRecord(freed.ready, context->stream().handle) == cudaSuccess;
    }
    try {
      live_.erase(found);
      if (keep) free_[{block.owner, block.bytes}].push_back(freed);
    } catch (const std::bad_alloc&) {
      keep = false;
    }
    if (!keep) give_back(freed, block.bytes);
  }

  void trim() {
    const std::lock_guard lock(mutex_);
    for (auto it = free_.begin(); it != free_.end();) {
      if (pools_.count(it->first.first) != 0) {  // a graph's
        ++it;
        continue;
      }
      for (const FreeBlock& block : it->second) give_back(block, it->first.second);
      it = free_.erase(it);
    }
  }

  int open_pool() {
    const int pool = unused_id();
    const std::lock_guard lock(mutex_);
    pools_.insert(pool);
    return pool;
  }
  void close_pool(int pool, int stream) noexcept {
    const std::lock_guard lock(mutex_);
    pools_.erase(pool);
    for (auto& [pointer, block] : live_) {
      if (block.owner == pool) block.owner = stream;
    }
    for (auto it = free_.begin(); it != free_.end();) {
      if (it->first.first != pool) {
        ++it;
        continue;
      }
      for (const FreeBlock& block : it->second) {
        try {
          free_[{stream, it->first.second}].push_back(block);
        } catch (const std::bad_alloc&) {
          give_back(block, it->first.second);
        }
      }
      it = free_.erase(it);
    }
  }

  std::string where() const { return format(" on cuda:{}", device_); }

 private:
  void* take(const Stream& stream, int owner, std::size_t bytes) {  // null where none is cached
    const std::lock_guard lock(mutex_);
    const auto found = free_.find({owner, bytes});
    if (found == free_.end() || found->second.empty()) return nullptr;
    const FreeBlock block = found->second.back();
    if (block.ready != nullptr) {
      check(cudaStreamWaitEvent(stream.handle, block.ready, 0), "cudaStreamWaitEvent");
      events_.push_back(block.ready);
    }
    found->second.pop_back();
    cached -= bytes;
    return block.pointer;
  }

  void* allocate_fresh(std::size_t requested, std::size_t bytes) {
    if (!reserve(bytes)) {
      trim();
      if (!reserve(bytes)) fail(requested, where());
    }
    void* pointer = nullptr;
    cudaError_t status = cudaMalloc(&pointer, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      trim();
      status = cudaMalloc(&pointer, bytes);
    }
    if (status != cudaSuccess) {
      cudaGetLastError();
      held -= bytes;
      if (status == cudaErrorMemoryAllocation) fail(requested, where());
      cuda::fail(status, "cudaMalloc");
    }
    fresh.fetch_add(1, std::memory_order_relaxed);
    return pointer;
  }

  // cudaFree waits for the device first.
  void give_back(const FreeBlock& block, std::size_t bytes) noexcept {
    cudaFree(block.pointer);
    if (block.ready != nullptr) cudaEventDestroy(block.ready);
    held -= bytes;
    cached -= bytes;
  }

  bool take_event(cudaEvent_t* event) noexcept {
    if (!events_.empty()) {
      *event = events_.back();
      events_.pop_back();
      return true;
    }
    // Blocks are freed whatever device is selected, and an event belongs to the selected one.
    const int selected = selected_device();
    if (selected != device_ && cudaSetDevice(device_) != cudaSuccess) return false;
    const bool made = cudaEventCreateWithFlags(event, cudaEventDisableTiming) == cudaSuccess;
    if (selected >= 0 && selected != device_) cudaSetDevice(selected);
    return made;
  }

  const int device_;
  std::mutex mutex_;
  std::unordered_map<void*, LiveBlock> live_;
  std::map<std::pair<int, std::size_t>, std::vector<FreeBlock>> free_;  // by stream and size
  std::set<int> pools_;                                                 // of graphs
  std::vector<cudaEvent_t> events_;
};

void* allocate(std::size_t bytes, int device) { return DeviceCache::of(device).allocate(bytes); }
void deallocate(void* pointer, std::size_t, int device) noexcept { DeviceCache::of(device).deallocate(pointer); }
MemoryStats stats(int device) { return DeviceCache::of(device).stats(); }
void reset_peak(int device) {
  DeviceCache& cache = DeviceCache::of(device);
  cache.peak = cache.in_use.load();
}
void set_limit(std::size_t bytes, int device) {
  DeviceCache& cache = DeviceCache::of(device);
  cache.limit = bytes;
  if (bytes != 0 && cache.held > bytes) cache.trim();
}
void trim(int device) { DeviceCache::of(device).trim(); }

void copy_in(const void* host, void* to, std::size_t bytes, int device) {
  select(device);
  context().staging().copy_in(host, to, bytes);
}

void copy_out(const void* from, void* host, std::size_t bytes, int device) {
  select(device);
  context().staging().copy_out(from, host, bytes);
  context().synchronize_stream();
}

void copy_across(const void* from, int from_device, void* to, int to_device, std::size_t bytes) {
  select(to_device);
  context().synchronize_stream();  // the block may still be in use there
  select(from_device);
  Context& source = context();
  check(cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, source.stream().handle), "cudaMemcpyPeerAsync");
  source.synchronize_stream();
  select(to_device);
}

std::shared_ptr<void> ahead(int device, const std::function<void()>& work) {
  select(device);
  context().refuse_capture("a copy that runs ahead");
  const CopyStreamGuard guard(context());
  work();
  auto ticket = std::make_shared<Event>();
  ticket->record(context().stream());
  return ticket;
}

void await(int device, const std::shared_ptr<void>& ticket) {
  select(device);
  context().refuse_capture("waiting for a copy that ran ahead");
  static_cast<const Event*>(ticket.get())->wait_in(context().stream());
}

std::shared_ptr<void> capture(int device, const std::function<void()>& work) {
  select(device);
  // What lies in the cache would lie beside the graph's own memory.
  trim(device);
  return std::make_shared<Graph>(work);
}

void replay(int device, const std::shared_ptr<void>& graph) {
  select(device);
  static_cast<const Graph*>(graph.get())->launch();
}

std::shared_ptr<void> mark(int device) {
  select(device);
  context().refuse_capture("a moment");
  auto marker = std::make_shared<Event>(Event::Kind::time);
  marker->record(context().stream());
  return marker;
}

double seconds_between(const std::shared_ptr<void>& earlier, const std::shared_ptr<void>& later) {
  const Event &from = *static_cast<const Event*>(earlier.get()), &to = *static_cast<const Event*>(later.get());
  from.wait();
  to.wait();
  return to.seconds_since(from);
}

void synchronize(int device) {
  if (Context* context = find_context(device)) context->synchronize();
}

constexpr DeviceMemory kMemory = {
    .select = select,
    .allocate = allocate,
    .deallocate = deallocate,
    .stats = stats,
    .reset_peak = reset_peak,
    .set_limit = set_limit,
    .trim = trim,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .copy_across = copy_across,
    .ahead = ahead,
    .await = await,
    .capture = capture,
    .replay = replay,
    .mark = mark,
    .seconds_between = seconds_between,
    .synchronize = synchronize,
};

}  // namespace

int open_pool(int device) { return DeviceCache::of(device).open_pool(); }
void close_pool(int device, int pool, int stream) noexcept { DeviceCache::of(device).close_pool(pool, stream); }

}  // namespace polygrad::cuda

namespace polygrad {

const DeviceMemory& cuda_memory() { return cuda::kMemory; }

}  // namespace polygrad

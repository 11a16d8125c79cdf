// The caching allocator. A block's size is rounded up to one of eight classes per power of two, so that a freed block
// fits the next request of about its size; at most an eighth is wasted.
//
// The shared cache is never destroyed: tensors of static duration may still be freed after main.
#include "engine/memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "engine/backend/device_memory.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/memory_counters.h"
#include "engine/testing_access.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

namespace polygrad {

namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kAddressable = std::size_t{1} << 47;  // what a process can address; no system could give more
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kThreadBlock = 64 << 10;  // larger blocks go straight to the shared cache
constexpr std::size_t kThreadBytes = 1 << 20;   // what a thread keeps for itself at most

std::size_t class_of(std::size_t bytes) { return detail::size_class(bytes, kAlignment); }

void* system_allocate(std::size_t bytes) {
  const bool huge = bytes >= 2 * kHugePage;
  const std::size_t alignment = huge ? kHugePage : kAlignment;
  void* pointer = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (pointer && huge) madvise(pointer, bytes, MADV_HUGEPAGE);  // fewer page faults; harmless where not supported
  return pointer;
}

struct ThreadCache;

struct Cache : detail::MemoryCounters {
  std::mutex mutex;
  std::map<std::size_t, std::vector<void*>> free;  // by size class

  static Cache& instance() {
    static Cache* cache = new Cache;
    return *cache;
  }

  void give_back(void* pointer, std::size_t bytes) {
    ASAN_UNPOISON_MEMORY_REGION(pointer, bytes);
    std::free(pointer);
    held -= bytes;
  }

  void* take(std::size_t bytes) {  // nullptr where none is cached
    const std::lock_guard lock(mutex);
    const auto found = free.find(bytes);
    if (found == free.end() || found->second.empty()) return nullptr;
    void* pointer = found->second.back();
    found->second.pop_back();
    cached -= bytes;
    return pointer;
  }

  void put(void* pointer, std::size_t bytes) {
    const std::lock_guard lock(mutex);
    free[bytes].push_back(pointer);
  }

  void trim() {
    const std::lock_guard lock(mutex);
    for (auto& [bytes, blocks] : free) {
      for (void* pointer : blocks) {
        give_back(pointer, bytes);
        cached -= bytes;
      }
    }
    free.clear();
  }
};

struct ThreadCache {
  std::map<std::size_t, std::vector<void*>> free;
  std::size_t bytes = 0;

  void flush() {
    Cache& shared = Cache::instance();
    for (auto& [size, blocks] : free) {
      for (void* pointer : blocks) shared.put(pointer, size);
    }
    free.clear();
    bytes = 0;
  }
  ~ThreadCache();
};

thread_local bool thread_cache_gone = false;  // trivially destructible: readable while the thread ends
thread_local ThreadCache thread_cache;

ThreadCache::~ThreadCache() {
  flush();
  thread_cache_gone = true;
}

std::atomic<int> poison_guards{0}, uncached_guards{0};

}  // namespace

namespace detail {

void MemoryCounters::fail(std::size_t bytes, const std::string& where) const {
  throw OutOfMemoryError(
      format("[allocate] out of memory{}: requested {} bytes; {} in use, {} cached, limit {}; use a smaller "
             "batch, raise the limit (set_memory_limit) or free tensors",
             where, bytes, in_use.load(), cached.load(), limit.load() ? format("{}", limit.load()) : "none"));
}

void* allocate(std::size_t requested, Device device) {
  if (device.type == DeviceType::cuda) return cuda_memory().allocate(requested, device.index);
  Cache& cache = Cache::instance();
  cache.allocations.fetch_add(1, std::memory_order_relaxed);
  if (requested > kAddressable) cache.fail(requested);
  const std::size_t bytes = class_of(requested);
  void* pointer = nullptr;
  if (bytes <= kThreadBlock && !thread_cache_gone) {
    const auto found = thread_cache.free.find(bytes);
    if (found != thread_cache.free.end() && !found->second.empty()) {
      pointer = found->second.back();
      found->second.pop_back();
      thread_cache.bytes -= bytes;
      cache.cached -= bytes;
    }
  }
  if (!pointer) pointer = cache.take(bytes);
  if (!pointer) {
    if (!cache.reserve(bytes)) {
      trim_memory(device);
      if (!cache.reserve(bytes)) cache.fail(requested);
    }
    pointer = system_allocate(bytes);
    if (!pointer) {
      trim_memory(device);
      pointer = system_allocate(bytes);
    }
    if (!pointer) {
      cache.held -= bytes;
      cache.fail(requested);
    }
    cache.fresh.fetch_add(1, std::memory_order_relaxed);
  }
  ASAN_UNPOISON_MEMORY_REGION(pointer, bytes);
  if (poison_guards.load(std::memory_order_relaxed) > 0) std::memset(pointer, 0xff, bytes);
  ASAN_POISON_MEMORY_REGION(static_cast<char*>(pointer) + requested, bytes - requested);
  cache.count_use(bytes);
  return pointer;
}

void deallocate(void* pointer, std::size_t requested, Device device) noexcept {
  if (device.type == DeviceType::cuda) return cuda_memory().deallocate(pointer, requested, device.index);
  Cache& cache = Cache::instance();
  const std::size_t bytes = class_of(requested);
  cache.in_use -= bytes;
  ASAN_POISON_MEMORY_REGION(pointer, bytes);
  cache.cached += bytes;  // before another thread can take it
  try {
    if (bytes <= kThreadBlock && !thread_cache_gone && thread_cache.bytes + bytes <= kThreadBytes) {
      thread_cache.free[bytes].push_back(pointer);
      thread_cache.bytes += bytes;
    } else {
      cache.put(pointer, bytes);
    }
  } catch (const std::bad_alloc&) {  // no memory for the list: give the block back
    cache.cached -= bytes;
    cache.give_back(pointer, bytes);
  }
}

}  // namespace detail

MemoryStats memory_stats(Device device) {
  if (device.type == DeviceType::cuda) return cuda_memory().stats(device.index);
  return Cache::instance().stats();
}

void reset_peak_memory(Device device) {
  if (device.type == DeviceType::cuda) return cuda_memory().reset_peak(device.index);
  Cache& cache = Cache::instance();
  cache.peak = cache.in_use.load();
}

void set_memory_limit(std::size_t bytes, Device device) {
  if (device.type == DeviceType::cuda) return cuda_memory().set_limit(bytes, device.index);
  Cache& cache = Cache::instance();
  cache.limit = bytes;
  if (bytes != 0 && cache.held > bytes) trim_memory(device);
}

void trim_memory(Device device) {
  if (device.type == DeviceType::cuda) return cuda_memory().trim(device.index);
  if (!thread_cache_gone) thread_cache.flush();
  Cache::instance().trim();
}

namespace testing {

PoisonGuard::PoisonGuard() { ++poison_guards; }
PoisonGuard::~PoisonGuard() { --poison_guards; }
bool poisons() { return poison_guards.load(std::memory_order_relaxed) > 0; }

UncachedGuard::UncachedGuard() { ++uncached_guards; }
UncachedGuard::~UncachedGuard() { --uncached_guards; }
bool uncached() { return uncached_guards.load(std::memory_order_relaxed) > 0; }

}  // namespace testing

}  // namespace polygrad

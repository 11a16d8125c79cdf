// The pool: one queue of jobs, workers that help whoever has work, callers that always work on their own job.
//
// A job lives on its caller's stack. Workers join it under the pool's mutex and leave it under the same mutex, and the
// caller returns only when nobody is left in it. Chunks are claimed by an atomic counter, so who computes a chunk is a
// matter of timing; what a chunk computes is not. A training step has hundreds of short calls, and to wake a thread
// that sleeps takes as long as a short one: whoever waits looks for a while before going to sleep.
#include "engine/parallel.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

#include "engine/error.h"
#include "engine/format.h"
#include "engine/profile_hooks.h"

namespace polygrad {

namespace {

// The time of a thread's part, for a profiler.
struct CountedWork {
  const std::int64_t begin = detail::chunks_begin();
  ~CountedWork() { detail::chunks_end(begin); }
};

constexpr std::chrono::microseconds kLook{100};  // a few times what waking costs

POLYGRAD_INLINE void pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Waits for `done` without sleeping, for a while; it may hold or not afterwards. Whoever else wants this core gets it:
// on a machine with other work that may be the very thread that is waited for.
template <class Done>
void look_for(const Done& done) {
  const auto end = std::chrono::steady_clock::now() + kLook;
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) return;
      pause();
    }
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < end);
}

// Moves the calling thread, a worker, to another core that it may use; it may come back.
void leave_core(int core) {
  cpu_set_t allowed;
  if (core < 0 || core >= CPU_SETSIZE || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  cpu_set_t others = allowed;
  CPU_CLR(static_cast<std::size_t>(core), &others);
  if (CPU_COUNT(&others) == 0 || CPU_COUNT(&others) == CPU_COUNT(&allowed)) return;
  if (sched_setaffinity(0, sizeof others, &others) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
}

struct Job {
  Job(RangeFunction f, std::int64_t first, std::int64_t last, std::int64_t chunk_size, std::int64_t chunk_count,
      int helper_count)
      : function(f), begin(first), end(last), grain(chunk_size), chunks(chunk_count), helpers_allowed(helper_count) {}

  RangeFunction function;
  std::int64_t begin, end, grain, chunks;
  int helpers_allowed;
  detail::WorkCounter* counter = detail::work_counter();  // helpers work on the caller's account
  std::atomic<int> helpers{0};                            // written under the pool's mutex
  std::atomic<std::int64_t> next{0};
  std::mutex error_mutex;
  std::int64_t error_chunk = -1;
  std::exception_ptr error;

  void run_chunks() {
    FloatingPointGuard floating_point;
    const CountedWork counted;
    for (;;) {
      const std::int64_t chunk = next.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= chunks) return;
      const std::int64_t b = begin + chunk * grain;
      try {
        function(b, b + std::min(grain, end - b));
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (error_chunk < 0 || chunk < error_chunk) {
          error_chunk = chunk;
          error = std::current_exception();
        }
      }
    }
  }
};

thread_local bool inside_parallel = false;
thread_local int guarded_threads = 0;  // 0: no guard

class Pool {
 public:
  // Never destroyed: workers may be waiting in it while the process ends. A forked child has none of its parent's
  // threads, so it gets a pool of its own.
  static Pool& instance() {
    static std::atomic<Pool*> pool = [] {
      pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
      return new Pool;
    }();
    return *pool.load(std::memory_order_acquire);
  }

  void run(Job& job) {
    {
      const std::lock_guard lock(mutex_);
      while (workers_ < job.helpers_allowed && start_worker()) ++workers_;
      jobs_.push_back(&job);
      posted_.fetch_add(1, std::memory_order_release);
      poster_core_.store(sched_getcpu(), std::memory_order_relaxed);
    }
    if (job.helpers_allowed == 1) {
      work_available_.notify_one();
    } else {
      work_available_.notify_all();
    }
    inside_parallel = true;
    job.run_chunks();
    inside_parallel = false;
    std::unique_lock lock(mutex_);
    jobs_.erase(std::find(jobs_.begin(), jobs_.end(), &job));
    if (job.helpers == 0) return;
    if (looks()) {
      lock.unlock();
      look_for([&] { return job.helpers.load(std::memory_order_acquire) == 0; });
      lock.lock();
    }
    job_left_.wait(lock, [&] { return job.helpers == 0; });
  }

 private:
  // False where the system has no thread left: the call goes on with the workers there are, the caller at least.
  bool start_worker() {
    try {
      std::thread([this] { work(); }).detach();
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }

  // Only where each of them has a core: elsewhere one that looks keeps another from working. Under the mutex.
  bool looks() const { return workers_ < default_num_threads(); }

  // A job that takes another helper, or none. Under the mutex.
  Job* open_job() const {
    for (Job* job : jobs_) {
      if (job->helpers < job->helpers_allowed && job->next.load(std::memory_order_relaxed) < job->chunks) return job;
    }
    return nullptr;
  }

  void work() {
    inside_parallel = true;  // whatever a chunk calls runs serially in this thread
    std::unique_lock lock(mutex_);
    for (;;) {
      Job* job = open_job();
      if (!job && looks()) {
        const std::uint64_t seen = posted_.load(std::memory_order_relaxed);
        lock.unlock();
        const int core = poster_core_.load(std::memory_order_relaxed);
        if (core == sched_getcpu()) leave_core(core);
        look_for([&] { return posted_.load(std::memory_order_acquire) != seen; });
        lock.lock();
        job = open_job();
      }
      if (!job) work_available_.wait(lock, [&] { return (job = open_job()) != nullptr; });
      ++job->helpers;
      lock.unlock();
      detail::set_work_counter(job->counter);
      job->run_chunks();
      lock.lock();
      if (--job->helpers == 0) job_left_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_available_, job_left_;
  std::deque<Job*> jobs_;
  std::atomic<std::uint64_t> posted_{0};  // jobs so far
  std::atomic<int> poster_core_{-1};      // where the last one came from
  int workers_ = 0;
};

std::atomic<int> configured_threads{0};

// The CPU quota of this process's control group in whole cores, rounded up; 0 where there is none.
int cgroup_quota() {
  long long quota = -1, period = 0;
  if (std::FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "r")) {
    if (std::fscanf(file, "%lld %lld", &quota, &period) != 2) quota = -1;  // "max 100000": no quota
    std::fclose(file);
  } else {
    if (std::FILE* first = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "r")) {
      if (std::fscanf(first, "%lld", &quota) != 1) quota = -1;
      std::fclose(first);
    }
    if (std::FILE* second = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "r")) {
      if (std::fscanf(second, "%lld", &period) != 1) period = 0;
      std::fclose(second);
    }
  }
  return quota > 0 && period > 0 ? static_cast<int>((quota + period - 1) / period) : 0;
}

}  // namespace

void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain, RangeFunction function) {
  if (begin >= end) return;
  if (grain < 1) throw InternalError(format("[parallel_for] grain {}; expected at least 1", grain));
  const std::int64_t chunks = (end - begin - 1) / grain + 1;  // no sum that could overflow for a huge grain
  const int threads = inside_parallel || chunks == 1 ? 1 : num_threads();
  if (threads == 1) {
    FloatingPointGuard floating_point;
    const CountedWork counted;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      const std::int64_t b = begin + chunk * grain;
      function(b, b + std::min(grain, end - b));
    }
    return;
  }
  Job job(function, begin, end, grain, chunks, static_cast<int>(std::min<std::int64_t>(threads, chunks)) - 1);
  Pool::instance().run(job);
  if (job.error) std::rethrow_exception(job.error);
}

int default_num_threads() {
  static const int threads = [] {
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                            : static_cast<int>(std::thread::hardware_concurrency());
    const int quota = cgroup_quota();
    if (quota > 0) cores = std::min(cores, quota);
    return std::max(cores, 1);
  }();
  return threads;
}

int num_threads() {
  if (guarded_threads > 0) return guarded_threads;
  const int configured = configured_threads.load(std::memory_order_relaxed);
  return configured > 0 ? configured : default_num_threads();
}

void set_num_threads(int n) {
  if (n < 0) throw ValueError(format("[set_num_threads] {} threads; expected at least 1, or 0 for the default", n));
  configured_threads.store(n, std::memory_order_relaxed);
}

NumThreadsGuard::NumThreadsGuard(int n) : previous_(guarded_threads) {
  if (n < 1) throw ValueError(format("[NumThreadsGuard] {} threads; expected at least 1", n));
  guarded_threads = n;
}

NumThreadsGuard::~NumThreadsGuard() { guarded_threads = previous_; }

#if defined(__x86_64__) || defined(__i386__)

FloatingPointGuard::FloatingPointGuard() : previous_(_mm_getcsr()) {
  constexpr std::uint32_t kDefault = 0x1f80;  // all exceptions masked, round to nearest, no FTZ, no DAZ
  if ((previous_ & ~0x3fu) != kDefault) _mm_setcsr(kDefault);
}

FloatingPointGuard::~FloatingPointGuard() {
  if ((previous_ & ~0x3fu) != 0x1f80) _mm_setcsr(previous_);
}

#elif defined(__aarch64__)

FloatingPointGuard::FloatingPointGuard() {
  std::uint64_t fpcr;
  __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
  previous_ = static_cast<std::uint32_t>(fpcr);
  if (fpcr != 0) __asm__ volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
}

FloatingPointGuard::~FloatingPointGuard() {
  if (previous_ != 0) __asm__ volatile("msr fpcr, %0" : : "r"(std::uint64_t{previous_}));
}

#else
#error "FloatingPointGuard: tell polygrad how this CPU's floating-point state is set"
#endif

}  // namespace polygrad

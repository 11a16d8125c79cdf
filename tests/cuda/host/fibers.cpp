// The threads of a block as fibers. Each runs until a barrier or a warp operation, where it waits, and another takes
// its place; when the last one of those that must meet has arrived, all of them may go on. A thread that never waits
// costs two jumps.
//
// Strict where CUDA leaves behaviour undefined: threads of a block that wait at different barriers, or for one that has
// ended, are an error, as are lanes of a warp that meet in different operations.
#include "tests/cuda/host/fibers.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/cuda/host/host_cuda.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace host_cuda {
namespace {

constexpr std::size_t kStack = 128 << 10, kPage = 4096;
constexpr std::size_t kMaxShared = 227 << 10;
constexpr int kMaxThreads = 1024;

void enter();

// --- changing stacks ------------------------------------------------------------------------------------------------

#if defined(__x86_64__)

// Saves the callee's registers on the stack that it leaves, and takes them from the one that it enters.
extern "C" void host_cuda_switch(void** leave, void* enter);
asm(R"(
.text
.globl host_cuda_switch
.type host_cuda_switch, @function
host_cuda_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size host_cuda_switch, .-host_cuda_switch
)");

struct Fiber {
  char* stack;
  void* place;
  void prepare() {
    void** top = reinterpret_cast<void**>(stack + kStack);
    *--top = nullptr;  // what enter() would return to; keeps its frame aligned as a call does
    *--top = reinterpret_cast<void*>(enter);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    place = top;
  }
};
void* scheduler_place;
void resume(Fiber& fiber) { host_cuda_switch(&scheduler_place, fiber.place); }
void suspend(Fiber& fiber) { host_cuda_switch(&fiber.place, scheduler_place); }

#else

struct Fiber {
  char* stack;
  ucontext_t place;
  void prepare() {
    getcontext(&place);
    place.uc_stack.ss_sp = stack;
    place.uc_stack.ss_size = kStack;
    place.uc_link = nullptr;
    makecontext(&place, enter, 0);
  }
};
ucontext_t scheduler_place;
void resume(Fiber& fiber) { swapcontext(&scheduler_place, &fiber.place); }
void suspend(Fiber& fiber) { swapcontext(&fiber.place, &scheduler_place); }

#endif

// --- a block --------------------------------------------------------------------------------------------------------

struct Thread {
  Fiber* fiber = nullptr;
  enum State { fresh, ready, at_barrier, in_warp, ended } state = fresh;
  Site site;  // where it waits
};

// An operation of a warp in which lanes are meeting.
struct Meeting {
  unsigned mask = 0, arrived = 0;
  Site site;
  std::uint64_t slots[32];
};
struct Warp {
  std::vector<Meeting> open;
  std::uint64_t results[32][32];  // of a lane's last meeting: only it reads them
};

struct Block {
  const std::function<void()>* body = nullptr;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<Fiber*> idle;  // fibers without a thread
  int current = 0, at_barrier = 0, ended = 0;
  Site barrier_site;       // where those at_barrier wait
  std::size_t shared = 0;  // bytes of dynamic shared memory
  std::uint64_t number = 0;
  std::string error;
};
Block block;
alignas(128) unsigned char shared_memory[kMaxShared];

Fiber* take_fiber() {
  if (block.idle.empty()) {
    void* memory = mmap(nullptr, kStack + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    mprotect(memory, kPage, PROT_NONE);
    Fiber* fiber = new Fiber;
    fiber->stack = static_cast<char*>(memory) + kPage;
    block.idle.push_back(fiber);
  }
  Fiber* fiber = block.idle.back();
  block.idle.pop_back();
  return fiber;
}

// The first function of every fiber.
void enter() {
  (*block.body)();
  Thread& self = block.threads[static_cast<std::size_t>(block.current)];
  self.state = Thread::ended;
  ++block.ended;
  suspend(*self.fiber);
  std::abort();  // nobody resumes it
}

void wait_as(Thread::State state, const Site& site) {
  Thread& self = block.threads[static_cast<std::size_t>(block.current)];
  self.state = state;
  self.site = site;
  suspend(*self.fiber);
}

std::string text_of(const Site& site) { return std::string(site.file_name()) + ":" + std::to_string(site.line()); }

bool same(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

void run_thread(int index) {
  Thread& thread = block.threads[static_cast<std::size_t>(index)];
  if (thread.state == Thread::fresh) {
    thread.fiber = take_fiber();
    thread.fiber->prepare();
  }
  thread.state = Thread::ready;
  block.current = index;
  threadIdx.x = static_cast<unsigned>(index);
  resume(*thread.fiber);
  if (thread.state == Thread::ended && block.error.empty()) block.idle.push_back(thread.fiber);
}

std::string stuck_text() {
  std::string text = "threads wait for others that don't come:";
  std::size_t i = 0, parts = 0;
  while (i < block.threads.size() && ++parts < 8) {
    const Thread& first = block.threads[i];
    std::size_t end = i;
    while (end < block.threads.size() && block.threads[end].state == first.state &&
           (first.state == Thread::ended || same(block.threads[end].site, first.site))) {
      ++end;
    }
    text += " " + std::to_string(i) + "-" + std::to_string(end - 1) +
            (first.state == Thread::ended ? " ended" : " at " + text_of(first.site)) + ";";
    i = end;
  }
  return text;
}

void run_block() {
  const int count = static_cast<int>(block.threads.size());
  const bool down = settings().order == Order::descending;
  for (Thread& thread : block.threads) thread = Thread{};
  for (Warp& warp : block.warps) warp.open.clear();
  block.at_barrier = block.ended = 0;
  ++block.number;
  std::memset(shared_memory, 0xff, block.shared);
  while (block.ended < count && block.error.empty()) {
    bool moved = false;
    for (int i = 0; i < count && block.error.empty(); ++i) {
      const int index = down ? count - 1 - i : i;
      const auto state = block.threads[static_cast<std::size_t>(index)].state;
      if (state != Thread::fresh && state != Thread::ready) continue;
      run_thread(index);
      moved = true;
    }
    if (!moved && block.error.empty()) block.error = stuck_text();
  }
  if (block.error.empty()) return;
  for (const Thread& thread : block.threads) {  // what their fibers did is forgotten
    const bool idle = std::find(block.idle.begin(), block.idle.end(), thread.fiber) != block.idle.end();
    if (thread.fiber != nullptr && !idle) block.idle.push_back(thread.fiber);
  }
}

}  // namespace

// --- what threads call ----------------------------------------------------------------------------------------------

// The thread stays where it is.
void give_up(const std::string& what) {
  if (block.error.empty()) block.error = what;
  for (;;) wait_as(Thread::ended, Site::current());
}

int lane() { return block.current & 31; }
std::uint64_t block_number() { return block.number; }
unsigned char* dynamic_shared() { return shared_memory; }

void barrier(const Site& site) {
  if (block.at_barrier > 0 && !same(block.barrier_site, site)) {
    give_up("threads of a block wait at different barriers: " + text_of(block.barrier_site) + " and " + text_of(site));
  }
  block.barrier_site = site;
  if (++block.at_barrier < static_cast<int>(block.threads.size())) return wait_as(Thread::at_barrier, site);
  block.at_barrier = 0;
  for (Thread& thread : block.threads) {
    if (thread.state == Thread::at_barrier) thread.state = Thread::ready;
  }
}

namespace {

using Work = void (*)(void* const (&lanes)[32]);

// As gather; the last lane to come calls work, where there is one, instead of handing out the slots.
const std::uint64_t* come_together(unsigned mask, std::uint64_t value, const Site& site, Work work) {
  const int own = lane(), first = block.current - own;
  Warp& warp = block.warps[static_cast<std::size_t>(first / 32)];
  if ((mask >> own & 1u) == 0) give_up("a lane is not in the mask of its own operation: " + text_of(site));
  auto meeting =
      std::find_if(warp.open.begin(), warp.open.end(), [&](const Meeting& m) { return (m.mask & mask) != 0; });
  if (meeting == warp.open.end()) {
    warp.open.push_back({});
    meeting = warp.open.end() - 1;
    meeting->mask = mask;
    meeting->site = site;
  } else if (meeting->mask != mask || !same(meeting->site, site)) {
    give_up("lanes of a warp meet in different operations: " + text_of(meeting->site) + " and " + text_of(site));
  }
  meeting->arrived |= 1u << own;
  meeting->slots[own] = value;
  if (meeting->arrived != mask) {
    wait_as(Thread::in_warp, site);
    return warp.results[own];
  }
  if (work != nullptr) {
    void* lanes[32];
    for (int i = 0; i < 32; ++i) lanes[i] = reinterpret_cast<void*>(meeting->slots[i]);
    work(lanes);
  }
  for (int i = 0; i < 32; ++i) {
    if ((mask >> i & 1u) == 0) continue;
    if (work == nullptr) std::copy_n(meeting->slots, 32, warp.results[i]);
    Thread& thread = block.threads[static_cast<std::size_t>(first + i)];
    if (thread.state == Thread::in_warp) thread.state = Thread::ready;
  }
  warp.open.erase(meeting);
  return warp.results[own];
}

}  // namespace

const std::uint64_t* gather(unsigned mask, std::uint64_t value, const Site& site) {
  return come_together(mask, value, site, nullptr);
}

void meet(void* own, Work work, const Site& site) {
  come_together(0xffffffffu, reinterpret_cast<std::uint64_t>(own), site, work);
}

std::uint64_t exchange(unsigned mask, std::uint64_t value, int from, const Site& site) {
  if ((mask >> from & 1u) == 0) give_up("a lane reads from one that is not in the mask: " + text_of(site));
  return gather(mask, value, site)[from];
}

// --- a grid ---------------------------------------------------------------------------------------------------------

std::string run_grid(const cudaLaunchConfig_t& config, const std::function<void()>& thread) {
  const std::uint64_t blocks = std::uint64_t{config.gridDim.x} * config.gridDim.y * config.gridDim.z;
  const unsigned threads = config.blockDim.x;
  block.body = &thread;
  block.error.clear();
  block.shared = config.dynamicSmemBytes;
  block.threads.assign(threads, Thread{});
  block.warps.resize((threads + 31) / 32);
  gridDim = config.gridDim;
  blockDim = config.blockDim;
  threadIdx = {};
  counts().blocks += blocks;
  counts().threads += blocks * threads;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    std::uint64_t index = settings().order == Order::descending ? blocks - 1 - i : i;
    blockIdx.x = static_cast<unsigned>(index % config.gridDim.x);
    index /= config.gridDim.x;
    blockIdx.y = static_cast<unsigned>(index % config.gridDim.y);
    blockIdx.z = static_cast<unsigned>(index / config.gridDim.y);
    run_block();
    if (!block.error.empty()) {
      return "block (" + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) + ", " +
             std::to_string(blockIdx.z) + "): " + block.error;
    }
  }
  return "";
}

}  // namespace host_cuda

unsigned __ballot_sync(unsigned mask, int predicate, const host_cuda::Site& site) {
  const std::uint64_t* slots = host_cuda::gather(mask, predicate != 0, site);
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) {
    if ((mask >> i & 1u) != 0 && slots[i] != 0) result |= 1u << i;
  }
  return result;
}

unsigned __match_any_sync(unsigned mask, unsigned long long value, const host_cuda::Site& site) {
  const std::uint64_t* slots = host_cuda::gather(mask, value, site);
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) {
    if ((mask >> i & 1u) != 0 && slots[i] == value) result |= 1u << i;
  }
  return result;
}

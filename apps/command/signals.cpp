// No handler runs: the signals are blocked in every thread and one thread waits for them. So nothing is ever
// interrupted in the middle of a computation, a save or an allocation, and what a stop does is ordinary code.
#include "apps/command/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "engine/error.h"

namespace polygrad {

namespace {

constexpr std::chrono::milliseconds kOnePress{250};

struct Watch {
  std::stop_source source;
  std::atomic<bool> can_stop{false};  // somebody has the token
  std::atomic<int> caught{0};
  std::atomic<bool> ending{false};
  std::thread thread;
  sigset_t awaited, old_mask;

  void wait_for_signals() {
    std::chrono::steady_clock::time_point first;
    for (int number = 0; sigwait(&awaited, &number) == 0 && !ending;) {
      const auto now = std::chrono::steady_clock::now();
      if (!can_stop || (caught != 0 && now - first > kOnePress)) _exit(128 + number);
      if (caught != 0) continue;
      first = now;
      caught = number;
      source.request_stop();
    }
  }
};

std::unique_ptr<Watch> watch;

}  // namespace

SignalWatcher::SignalWatcher() {
  if (watch) throw InternalError("[signals] there is a SignalWatcher already");
  watch = std::make_unique<Watch>();
  sigemptyset(&watch->awaited);
  sigaddset(&watch->awaited, SIGINT);
  sigaddset(&watch->awaited, SIGTERM);
  struct sigaction hang_up = {};
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) sigaddset(&watch->awaited, SIGHUP);  // nohup means it
  pthread_sigmask(SIG_BLOCK, &watch->awaited, &watch->old_mask);
  watch->thread = std::thread([] { watch->wait_for_signals(); });
}

SignalWatcher::~SignalWatcher() {
  watch->ending = true;
  pthread_kill(watch->thread.native_handle(), SIGTERM);  // blocked, awaited: wakes the thread and nothing else
  watch->thread.join();
  pthread_sigmask(SIG_SETMASK, &watch->old_mask, nullptr);
  watch.reset();
}

std::stop_token SignalWatcher::token() const {
  watch->can_stop = true;
  return watch->source.get_token();
}

int SignalWatcher::signal() const { return watch->caught; }

}  // namespace polygrad

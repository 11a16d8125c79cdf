// A handler may do almost nothing, so it writes one byte into a pipe; a thread reads it and requests the stop.
#include "apps/training/signals.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "engine/error.h"

namespace polygrad {

namespace {

std::atomic<int> caught{0};
std::atomic<int> pipe_end{-1};

extern "C" void on_signal(int number) {
  int none = 0;
  if (!caught.compare_exchange_strong(none, number)) _exit(128 + number);
  const char byte = static_cast<char>(number);
  [[maybe_unused]] const ssize_t written = write(pipe_end.load(), &byte, 1);
}

struct Watch {
  std::stop_source source;
  int pipe[2] = {-1, -1};
  std::thread thread;
  struct sigaction old_interrupt, old_terminate, old_pipe;
};

std::unique_ptr<Watch> watch;

}  // namespace

SignalWatcher::SignalWatcher() {
  if (watch) throw InternalError("[signals] there is a SignalWatcher already");
  auto fresh = std::make_unique<Watch>();
  if (::pipe2(fresh->pipe, O_CLOEXEC) != 0) throw InternalError("[signals] no pipe could be made");
  caught = 0;
  pipe_end = fresh->pipe[1];
  fresh->thread = std::thread([reading = fresh->pipe[0], source = fresh->source]() mutable {
    char byte = 0;
    if (read(reading, &byte, 1) == 1 && byte != 0) source.request_stop();
  });
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &fresh->old_interrupt);
  sigaction(SIGTERM, &action, &fresh->old_terminate);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, &fresh->old_pipe);
  watch = std::move(fresh);
}

SignalWatcher::~SignalWatcher() {
  sigaction(SIGINT, &watch->old_interrupt, nullptr);
  sigaction(SIGTERM, &watch->old_terminate, nullptr);
  sigaction(SIGPIPE, &watch->old_pipe, nullptr);
  const char none = 0;
  [[maybe_unused]] const ssize_t written = write(watch->pipe[1], &none, 1);
  watch->thread.join();
  pipe_end = -1;
  close(watch->pipe[0]);
  close(watch->pipe[1]);
  watch.reset();
}

std::stop_token SignalWatcher::token() const { return watch->source.get_token(); }

int SignalWatcher::signal() const { return caught.load(); }

}  // namespace polygrad

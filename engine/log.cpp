// The log sink; see log.h. It is one of the few pieces of state that all threads share.
#include "engine/log.h"

#include <memory>
#include <mutex>
#include <utility>

namespace polygrad {
namespace {

struct SinkState {
  std::mutex mutex;
  std::shared_ptr<const LogSink> sink;
};

// Never destroyed: a thread may still log while the process ends.
SinkState& sink_state() {
  static SinkState* const state = new SinkState;
  return *state;
}

}  // namespace

void set_log_sink(LogSink sink) {
  std::shared_ptr<const LogSink> next;
  if (sink) next = std::make_shared<const LogSink>(std::move(sink));
  SinkState& state = sink_state();
  const std::lock_guard lock(state.mutex);
  state.sink.swap(next);
}

void log_message(LogLevel level, std::string_view message) {
  std::shared_ptr<const LogSink> sink;
  {
    SinkState& state = sink_state();
    const std::lock_guard lock(state.mutex);
    sink = state.sink;
  }
  // Called without the lock, so that a sink may log, or replace itself, without waiting for itself.
  if (sink) (*sink)(level, message);
}

}  // namespace polygrad

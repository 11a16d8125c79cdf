// SignalWatcher: SIGINT, SIGTERM and SIGHUP as a std::stop_token. Program code: the library itself never touches
// handlers.
//
// Until there is something to save, a signal leaves at once with 128 + signal. From then on the first one asks the
// trainer to finish its step and save; the second leaves at once (a save that is under way is not harmed: checkpoints
// appear by a rename). What follows the first within a quarter of a second counts with it: timeout and job schedulers
// signal a process and its group, and keys bounce.
#pragma once

#include <stop_token>

namespace polygrad {

class SignalWatcher {
 public:
  // Make it before any other thread: threads inherit that the signals are blocked, and one that was there before
  // would get them with their old meaning. One watcher at a time in a process (else InternalError).
  SignalWatcher();
  ~SignalWatcher();  // the signals have their old meaning again
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

  // From now on the first signal requests a stop of this token.
  std::stop_token token() const;
  // The signal that was caught, 0 where none was.
  int signal() const;
};

}  // namespace polygrad

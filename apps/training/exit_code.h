// Exit codes, and the one line on stderr that goes with each failure. The programs' mains use it; libraries never exit.
#pragma once

#include <exception>
#include <string>

namespace polygrad {

enum class ExitCode : int {
  done = 0,
  check_failed = 1,  // --overfit did not get there, a comparison differs
  usage = 2,         // wrong usage or configuration
  data = 3,          // data set missing, unreadable or inconsistent
  diverged = 4,      // non-finite loss or gradient
  files = 5,         // weights, checkpoints or output files
  device = 6,        // not there, or out of memory
  internal = 70,     // please report
  hung_up = 129,     // 128 + signal: stopped by SIGHUP, SIGINT, SIGTERM
  interrupted = 130,
  terminated = 143
};

struct Failure {
  ExitCode code = ExitCode::internal;
  std::string line;  // "error: ...", without a line break
};

// ConfigError, ValueError and NotImplementedError are usage (a configuration that can't be built), DataError data,
// NumericError diverged, IoError files, DeviceError, OutOfMemoryError, CudaError and std::bad_alloc device, everything
// else internal.
Failure describe_failure(const std::exception_ptr& exception);

// "error: " and a text on one line, for failures that are no exception (CLI11's).
std::string error_line(const std::string& text);

}  // namespace polygrad

#include "apps/training/exit_code.h"

#include <new>
#include <string_view>

#include "engine/error.h"

namespace polygrad {

namespace {

// Line breaks become blanks: an error is one line.
std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const bool blank = c == '\n' || c == '\r' || c == '\t' || c == ' ';
    if (!blank) {
      line += c;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

Failure failure(ExitCode code, const char* what) { return {code, error_line(what)}; }

}  // namespace

std::string error_line(const std::string& text) { return "error: " + one_line(text); }

Failure describe_failure(const std::exception_ptr& exception) {
  const auto internal = [](const std::string& what) {
    return Failure{ExitCode::internal, error_line("internal error, please report it: " + what)};
  };
  try {
    std::rethrow_exception(exception);
  } catch (const ConfigError& error) {
    return failure(ExitCode::usage, error.what());
  } catch (const ValueError& error) {
    return failure(ExitCode::usage, error.what());
  } catch (const NotImplementedError& error) {
    return failure(ExitCode::usage, error.what());
  } catch (const DataError& error) {
    return failure(ExitCode::data, error.what());
  } catch (const NumericError& error) {
    return failure(ExitCode::diverged, error.what());
  } catch (const IoError& error) {
    return failure(ExitCode::files, error.what());
  } catch (const DeviceError& error) {
    return failure(ExitCode::device, error.what());
  } catch (const OutOfMemoryError& error) {
    return failure(ExitCode::device, error.what());
  } catch (const CudaError& error) {
    return failure(ExitCode::device, error.what());
  } catch (const std::bad_alloc&) {
    return failure(ExitCode::device, "[memory] the machine's memory is exhausted; try a smaller train.batch_size");
  } catch (const std::exception& error) {
    return internal(error.what());
  } catch (...) {
    return internal("an exception of an unknown type");
  }
}

}  // namespace polygrad

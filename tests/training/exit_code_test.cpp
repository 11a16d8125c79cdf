// Which exit code and which line each failure gets.
#include "apps/training/exit_code.h"

#include <doctest/doctest.h>

#include <new>

#include "engine/error.h"

using namespace polygrad;

namespace {

template <class E>
Failure failure_of(const E& error) {
  return describe_failure(std::make_exception_ptr(error));
}

}  // namespace

TEST_CASE("each kind of failure has its code") {
  CHECK(static_cast<int>(failure_of(ConfigError("x")).code) == 2);
  CHECK(static_cast<int>(failure_of(ValueError("x")).code) == 2);
  CHECK(static_cast<int>(failure_of(NotImplementedError("x")).code) == 2);
  CHECK(static_cast<int>(failure_of(DataError("x")).code) == 3);
  CHECK(static_cast<int>(failure_of(NumericError("x")).code) == 4);
  CHECK(static_cast<int>(failure_of(IoError("x")).code) == 5);
  CHECK(static_cast<int>(failure_of(DeviceError("x")).code) == 6);
  CHECK(static_cast<int>(failure_of(OutOfMemoryError("x")).code) == 6);
  CHECK(static_cast<int>(failure_of(CudaError("x")).code) == 6);
  CHECK(static_cast<int>(failure_of(std::bad_alloc()).code) == 6);
  CHECK(static_cast<int>(failure_of(ShapeError("x")).code) == 70);
  CHECK(static_cast<int>(failure_of(InternalError("x")).code) == 70);
  CHECK(static_cast<int>(failure_of(std::runtime_error("x")).code) == 70);
  CHECK(static_cast<int>(failure_of(5).code) == 70);
}

TEST_CASE("the text is one line") {
  CHECK(failure_of(IoError("[save] no space\n  left\ton device \n")).line == "error: [save] no space left on device");
  CHECK(failure_of(std::runtime_error("odd")).line == "error: internal error, please report it: odd");
  CHECK(failure_of(5).line == "error: internal error, please report it: an exception of an unknown type");
}

// One tree of errors: whatever polygrad throws on purpose is an Error, of the type its meaning says.
#include "engine/error.h"

#include <doctest/doctest.h>

#include <string>

#include "engine/version.h"

using namespace polygrad;

TEST_CASE_TEMPLATE("each type is an Error, keeps its text and is no other type", T, ShapeError, DTypeError, DeviceError,
                   IndexError, ValueError, NotImplementedError, OutOfMemoryError, CudaError, IoError, DataError,
                   ConfigError, GradError, NumericError, InternalError) {
  const auto raise = [] { throw T("[op] text"); };
  CHECK_THROWS_WITH_AS(raise(), "[op] text", T);
  CHECK_THROWS_AS(raise(), Error);
  CHECK_THROWS_AS(raise(), std::runtime_error);
  // A catch of a sibling must not take it.
  bool taken_by_sibling = false;
  try {
    raise();
  } catch (const std::conditional_t<std::is_same_v<T, ShapeError>, ValueError, ShapeError>&) {
    taken_by_sibling = true;
  } catch (const Error&) {
  }
  CHECK_FALSE(taken_by_sibling);
}

TEST_CASE("the version") {
  const std::string expected = std::to_string(POLYGRAD_VERSION_MAJOR) + "." + std::to_string(POLYGRAD_VERSION_MINOR) +
                               "." + std::to_string(POLYGRAD_VERSION_PATCH);
  CHECK(expected == POLYGRAD_VERSION);
  CHECK(expected == version());
}

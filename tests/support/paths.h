// Where the programs and the tree lie, for tests that run the one or read the other. No path is compiled in, so that
// the compiler cache serves every clone.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace polygrad::testing {

// The folder of this test executable, which is that of the programs: build/bin.
inline std::string bin_dir() {
  char path[4096];
  const auto length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) throw std::runtime_error("cannot read /proc/self/exe");
  const std::string file(path, static_cast<std::size_t>(length));
  return file.substr(0, file.rfind('/'));
}

// The root of the source tree; ctest sets the variable.
inline std::string source_dir() {
  const char* path = std::getenv("POLYGRAD_SOURCE_DIR");
  if (path == nullptr) throw std::runtime_error("POLYGRAD_SOURCE_DIR is not set: run the suite with ctest");
  return path;
}

}  // namespace polygrad::testing

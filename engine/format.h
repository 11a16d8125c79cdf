// format(): {fmt} for messages, without its templates in every translation unit. Internal: not installed.
//
// Only fmt/core.h is included (fast to compile); format.cpp holds the implementation. The whole library is compiled
// with the namespace renamed (-Dfmt=polygrad_fmt), so a host's own {fmt}, of any version, never meets ours.
#pragma once

#include <fmt/core.h>

#include <string>

namespace polygrad {

using fmt::format;

}  // namespace polygrad

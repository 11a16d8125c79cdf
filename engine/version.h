// The library's version: semantic, known to the preprocessor and at run time.
#pragma once

#define POLYGRAD_VERSION_MAJOR 0
#define POLYGRAD_VERSION_MINOR 1
#define POLYGRAD_VERSION_PATCH 0
#define POLYGRAD_VERSION "0.1.0"

namespace polygrad {

// POLYGRAD_VERSION of the library that is linked (the macro is that of the headers).
const char* version();
// The source it was built from: a git commit, "-dirty" where the tree had changes; "unknown" outside a checkout.
const char* git_id();

}  // namespace polygrad

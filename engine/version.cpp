// The version of the linked library; see version.h.
#include "engine/version.h"

namespace polygrad {

const char* version() { return POLYGRAD_VERSION; }
const char* git_id() { return POLYGRAD_GIT_ID; }

}  // namespace polygrad

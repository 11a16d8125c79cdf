#include "ops/tf32.h"

#include <atomic>

namespace polygrad {
namespace {

std::atomic<bool> allowed{false};

}  // namespace

void set_allow_tf32(bool allow) { allowed.store(allow, std::memory_order_relaxed); }
bool allow_tf32() { return allowed.load(std::memory_order_relaxed); }

}  // namespace polygrad

// Deliberate faults: a way to prove that a test would notice a wrong op, or a kernel that reads what it should not.
//
// While a MutationGuard lives, this thread's op named `op` has its value, or each gradient its rule returns, multiplied
// by `factor`, at the one place where all ops pass: record() and the walk of the graph. For tests only.
#pragma once

#include <string>

namespace polygrad::testing {

enum class MutationTarget { value, gradient };

class MutationGuard {
 public:
  MutationGuard(std::string op, MutationTarget target, double factor = 1.001);
  ~MutationGuard();
  MutationGuard(const MutationGuard&) = delete;
  MutationGuard& operator=(const MutationGuard&) = delete;
  // How many times the fault was applied.
  int applied() const { return applied_; }

  struct Access;  // for record() and the walk

 private:
  std::string op_;
  MutationTarget target_;
  double factor_;
  int applied_ = 0;
  MutationGuard* previous_;
};

// While one lives, every block the allocator gives out (to any thread) is filled with 0xFF bytes: NaN in f32 and f64,
// so a kernel that leaves an element unwritten, or reads one it did not write, cannot pass.
class PoisonGuard {
 public:
  PoisonGuard();
  ~PoisonGuard();
  PoisonGuard(const PoisonGuard&) = delete;
  PoisonGuard& operator=(const PoisonGuard&) = delete;
};

// While one lives, every block of a GPU's memory is asked of the system, with its exact size, and given back when it is
// freed: a memory checker then sees where each tensor ends.
class UncachedGuard {
 public:
  UncachedGuard();
  ~UncachedGuard();
  UncachedGuard(const UncachedGuard&) = delete;
  UncachedGuard& operator=(const UncachedGuard&) = delete;
};

}  // namespace polygrad::testing

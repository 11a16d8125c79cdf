// device: where a run computes.
//
// Where this stands: above engine/device.h; every entry of this library that takes a configuration asks here first.
#pragma once

#include <string>

#include "apps/training/config.h"
#include "engine/device.h"

namespace polygrad {

// "auto": cuda:0 where this build and this machine can use one, else the CPU; "cpu"; "cuda:0". Throws ValueError for
// another word, DeviceError (saying what to do) for a device that is not there.
Device choose_device(const std::string& text);
// The same of the configuration's `device`.
Device choose_device(const Config& config);

// While it lives, products of f32 matrices on a GPU may be rounded to TF32 where `allow` (ops/tf32.h), or may not.
class Tf32Guard {
 public:
  explicit Tf32Guard(bool allow);
  ~Tf32Guard();
  Tf32Guard(const Tf32Guard&) = delete;
  Tf32Guard& operator=(const Tf32Guard&) = delete;

 private:
  bool previous_;
};

}  // namespace polygrad

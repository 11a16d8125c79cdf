// Moment: a point in a device's work. Two of them say how long the device took for what lies between.
//
// Where this stands: beside prefetch.h; for benchmarks and applications that measure. A GPU works behind the host's
// back, so that the host's clock around a call says nothing about the call.
#pragma once

#include <memory>

#include "engine/device.h"

namespace polygrad {

// The moment at which `device` has done all that the calling thread has started there so far. Making one doesn't wait.
// On the CPU, where calls return when their work is done: now, by a monotonic clock.
class Moment {
 public:
  // Throws DeviceError, CudaError.
  explicit Moment(Device device);
  // Waits until both have come. Throws DeviceError for a moment of another device, CudaError.
  double seconds_since(const Moment& earlier) const;

 private:
  Device device_;
  double clock_ = 0;              // of the CPU
  std::shared_ptr<void> marker_;  // of a GPU
};

}  // namespace polygrad

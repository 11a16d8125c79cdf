// Prefetch: a tensor on its way to a device, while that device still works on something else.
//
// Where this stands: above tensor.h; for loaders and training loops. On the CPU there is no way to go.
#pragma once

#include <memory>

#include "engine/tensor.h"

namespace polygrad {

// Starts the copy of a CPU tensor to `device`; get() gives the tensor there, which is ready for every operation that
// the calling thread starts afterwards. The host waits for neither; `source` has been read when the constructor
// returns. No gradient. Throws DeviceError, OutOfMemoryError.
class Prefetch {
 public:
  Prefetch() = default;  // get() gives an undefined tensor
  Prefetch(const Tensor& source, Device device);
  // Also in another thread than the constructor's.
  Tensor get() const;

 private:
  Tensor tensor_;
  std::shared_ptr<void> ticket_;
};

}  // namespace polygrad

// Capture: work on a GPU that is recorded once, and started again as a whole: a CUDA graph.
//
// Where this stands: beside device.h; for training loops, whose steps start the same kernels on the same memory again
// and again. Starting a graph takes about as long as starting a few kernels, however many are in it.
//
//   const Capture step(device, [&] { cross_entropy(model.forward(images), labels).backward(); });
//   images.copy_(next); step.run();
#pragma once

#include <functional>
#include <memory>

#include "engine/device.h"

namespace polygrad {

class Capture {
 public:
  Capture() = default;  // nothing: run() is a ValueError
  // Calls `work` once; what it starts on the device is recorded instead of done. Everything that is not a kernel
  // happens here and now, and only now: numbers that the host passes to kernels stay what they are. `work` must not
  // wait for the device or copy from or to the host (InternalError), so run it once without a capture before: then
  // nothing is left that is made at a first use. Memory that it takes stays taken until the Capture is gone: results
  // that are still held keep their addresses, and hold what the last run() gave. What it reads and writes besides must
  // outlive the Capture. Throws DeviceError for the CPU, CudaError, OutOfMemoryError, and what `work` throws.
  Capture(Device device, const std::function<void()>& work);
  // Starts the recorded work, behind what the calling thread has started. The constructor's thread.
  void run() const;

 private:
  Device device_;
  std::shared_ptr<void> graph_;
};

}  // namespace polygrad

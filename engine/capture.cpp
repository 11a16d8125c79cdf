#include "engine/capture.h"

#include "engine/backend/device_memory.h"
#include "engine/error.h"

namespace polygrad {

Capture::Capture(Device device, const std::function<void()>& work) : device_(device) {
  if (device.type == DeviceType::cpu) throw DeviceError("[capture] the CPU starts nothing that could be captured");
  check_device(device);
  graph_ = cuda_memory().capture(device.index, work);
}

void Capture::run() const {
  if (!graph_) throw ValueError("[capture] nothing was captured");
  cuda_memory().replay(device_.index, graph_);
}

}  // namespace polygrad

#include "engine/prefetch.h"

#include "engine/backend/device_memory.h"

namespace polygrad {

Prefetch::Prefetch(const Tensor& source, Device device) {
  const Tensor elements = source.detach();
  if (device.type == DeviceType::cpu || source.device() == device) {
    tensor_ = elements.to(device);
    return;
  }
  check_device(device);
  ticket_ = cuda_memory().ahead(device.index, [&] { tensor_ = elements.to(device); });
}

Tensor Prefetch::get() const {
  if (ticket_) cuda_memory().await(tensor_.device().index, ticket_);
  return tensor_;
}

}  // namespace polygrad

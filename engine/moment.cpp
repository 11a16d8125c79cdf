#include "engine/moment.h"

#include <chrono>

#include "engine/backend/device_memory.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

Moment::Moment(Device device) : device_(device) {
  check_device(device);
  if (device.type == DeviceType::cuda) {
    marker_ = cuda_memory().mark(device.index);
  } else {
    clock_ = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
}

double Moment::seconds_since(const Moment& earlier) const {
  if (device_ != earlier.device_) {
    throw DeviceError(format("[Moment] two devices: a moment of {}, and an earlier one of {}", to_string(device_),
                             to_string(earlier.device_)));
  }
  if (!marker_) return clock_ - earlier.clock_;
  return cuda_memory().seconds_between(earlier.marker_, marker_);
}

}  // namespace polygrad

#include "apps/training/device.h"

#include "engine/error.h"
#include "engine/log.h"
#include "ops/tf32.h"

namespace polygrad {

Device choose_device(const std::string& text) {
  if (text != "auto") {
    const Device device = parse_device(text);
    check_device(device);
    return device;
  }
  if (cuda_device_count() == 0) return Device::cpu();
  try {
    check_device(Device::cuda());
    return Device::cuda();
  } catch (const DeviceError& error) {  // there is one, but not for this build: worth a word
    log_message(LogLevel::warning, std::string(error.what()) + "; computing on the CPU");
    return Device::cpu();
  }
}

Device choose_device(const Config& config) { return choose_device(config.text("device")); }

Tf32Guard::Tf32Guard(bool allow) : previous_(allow_tf32()) { set_allow_tf32(allow); }
Tf32Guard::~Tf32Guard() { set_allow_tf32(previous_); }

}  // namespace polygrad

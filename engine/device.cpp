#include "engine/device.h"

#include "engine/backend/device_memory.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

std::string to_string(Device device) {
  return device.type == DeviceType::cpu ? "cpu" : format("cuda:{}", device.index);
}

Device parse_device(const std::string& text) {
  if (text == "cpu") return Device::cpu();
  if (text == "cuda") return Device::cuda();
  if (text.rfind("cuda:", 0) == 0 && text.size() > 5 && text.size() <= 8 &&
      text.find_first_not_of("0123456789", 5) == std::string::npos) {
    return Device::cuda(std::stoi(text.substr(5)));
  }
  throw ValueError(format("[device] \"{}\" is no device; expected cpu, cuda or cuda:N", text));
}

void synchronize(Device device) {
  if (device.type == DeviceType::cuda) cuda_memory().synchronize(device.index);
}

}  // namespace polygrad

#include "engine/workspace.h"

#include "engine/backend/device_memory.h"
#include "engine/memory.h"

namespace polygrad {

Workspace::Workspace(Device device) : device_(device) {
  if (device.type == DeviceType::cuda) cuda_memory().select(device.index);
}

Workspace::~Workspace() {
  for (const auto& [pointer, bytes] : blocks_) detail::deallocate(pointer, bytes, device_);
}

void* Workspace::allocate(std::size_t bytes) {
  blocks_.reserve(blocks_.size() + 1);
  void* pointer = detail::allocate(bytes, device_);
  blocks_.emplace_back(pointer, bytes);
  return pointer;
}

Device Workspace::device() const { return device_; }

}  // namespace polygrad

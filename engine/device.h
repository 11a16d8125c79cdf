// Where a tensor's memory lies and its kernels run.
//
// Read next: tensor.h.
#pragma once

#include <cstdint>
#include <string>

namespace polygrad {

enum class DeviceType : std::uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  static Device cpu() { return {DeviceType::cpu, 0}; }
  static Device cuda(int index = 0) { return {DeviceType::cuda, index}; }
  bool operator==(const Device&) const = default;
};

// "cpu", "cuda:0".
std::string to_string(Device device);
// The inverse; "cuda" means "cuda:0". Throws ValueError for anything else.
Device parse_device(const std::string& text);
// The number of usable CUDA devices: 0 in a build without CUDA. Never throws.
int cuda_device_count();
// Throws DeviceError, saying what to do, where `device` cannot be used by this build on this machine.
void check_device(Device device);
// What it is, for people: "the CPU", "NVIDIA H200". Throws as check_device.
std::string device_name(Device device);
// Waits until the calling thread's work on the device is done. A GPU works behind the thread's back: reading a tensor
// on the CPU (to, item, to_vector) waits by itself, handing one to another thread doesn't, so call this first. Throws
// what the GPU found wrong (IndexError, CudaError). The CPU: nothing.
void synchronize(Device device);

}  // namespace polygrad

// Copies between the host's memory and a GPU's, through pinned memory, and ahead of time for a loader.
//
// Where this stands: above context.h; used by Tensor::to, and by what uploads small tables to kernels.
// Read next: transfer.cpp. Internal: not installed.
#pragma once

#include <cstddef>
#include <memory>

#include "engine/backend/cuda/context.h"

namespace polygrad::cuda {

// Two pinned buffers that take turns, so that the host fills one while the other travels.
class Staging {
 public:
  static constexpr std::size_t kBytes = std::size_t{4} << 20;  // of each buffer
  Staging();
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // In the current stream. copy_in returns when the host's memory has been read, copy_out when it has been written.
  void copy_in(const void* host, void* to, std::size_t bytes);
  void copy_out(const void* from, void* host, std::size_t bytes);

 private:
  struct Buffer {
    char* memory = nullptr;
    std::unique_ptr<Event> free;  // the last copy from or to it has ended
  };
  Buffer buffers_[2];
  int next_ = 0;
};

// A table for kernels that are started next, in the device's memory: it stays there, and an equal one that is asked for
// later, as in the next step of a training, is not sent again. Nobody waits.
const void* upload(const void* host, std::size_t bytes);

}  // namespace polygrad::cuda

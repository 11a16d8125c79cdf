#include "engine/backend/cuda/transfer.h"

#include <algorithm>
#include <cstring>

#include "engine/backend/cuda/status.h"

namespace polygrad::cuda {

Staging::Staging() {
  for (Buffer& buffer : buffers_) {
    void* memory = nullptr;
    check(cudaMallocHost(&memory, kBytes), "cudaMallocHost");
    buffer.memory = static_cast<char*>(memory);
    buffer.free = std::make_unique<Event>();
  }
}

Staging::~Staging() {
  for (Buffer& buffer : buffers_) cudaFreeHost(buffer.memory);
}

void Staging::copy_in(const void* host, void* to, std::size_t bytes) {
  const Stream& stream = context().stream();
  for (std::size_t done = 0; done < bytes; done += kBytes) {
    const std::size_t count = std::min(kBytes, bytes - done);
    Buffer& buffer = buffers_[next_];
    next_ ^= 1;
    buffer.free->wait();
    std::memcpy(buffer.memory, static_cast<const char*>(host) + done, count);
    check(cudaMemcpyAsync(static_cast<char*>(to) + done, buffer.memory, count, cudaMemcpyHostToDevice, stream.handle),
          "cudaMemcpyAsync");
    buffer.free->record(stream);
  }
}

void Staging::copy_out(const void* from, void* host, std::size_t bytes) {
  const Stream& stream = context().stream();
  struct Travelling {
    Buffer* buffer = nullptr;
    std::size_t done = 0, count = 0;
  };
  const auto land = [&](const Travelling& piece) {
    if (piece.buffer == nullptr) return;
    piece.buffer->free->wait();
    std::memcpy(static_cast<char*>(host) + piece.done, piece.buffer->memory, piece.count);
  };
  Travelling before;
  for (std::size_t done = 0; done < bytes; done += kBytes) {
    const Travelling piece{&buffers_[next_], done, std::min(kBytes, bytes - done)};
    next_ ^= 1;
    piece.buffer->free->wait();  // an earlier copy_in
    check(cudaMemcpyAsync(piece.buffer->memory, static_cast<const char*>(from) + done, piece.count,
                          cudaMemcpyDeviceToHost, stream.handle),
          "cudaMemcpyAsync");
    piece.buffer->free->record(stream);
    land(before);
    before = piece;
  }
  land(before);
}

void upload(const void* host, void* to, std::size_t bytes) { context().staging().copy_in(host, to, bytes); }

}  // namespace polygrad::cuda

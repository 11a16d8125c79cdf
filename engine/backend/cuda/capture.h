// A CUDA graph with the memory that belongs to it.
//
// Where this stands: above context.h, below memory.cpp, whose allocator keeps a pool for each.
// Internal: not installed.
#pragma once

#include <cuda_runtime.h>

#include <functional>

#include "engine/backend/cuda/context.h"

namespace polygrad::cuda {

// Of the allocator: a pool that blocks come from while context().pool is its number; afterwards they are nobody else's
// until it is closed, when those that are free go to that stream, and the others do when they are freed.
int open_pool(int device);
void close_pool(int device, int pool, int stream) noexcept;

class Graph {
 public:
  // In the selected device's compute stream.
  explicit Graph(const std::function<void()>& work);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch() const;

 private:
  int device_, pool_;
  Stream stream_;
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace polygrad::cuda

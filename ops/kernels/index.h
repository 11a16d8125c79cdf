// Kernels of the index family. All tensors are contiguous; x and y are (outer, size, inner), ids are valid i64.
//
// Where this stands: between ops/index.cpp (checks, shapes; also ops/loss.cpp, which checks its class ids here) and
// ops/cpu/index.cpp.
#pragma once

#include <cstdint>

#include "engine/tensor_ref.h"
#include "engine/workspace.h"
#include "ops/kernels/dispatch.h"

namespace polygrad {

struct IndexKernels {
  // The first position of ids (any shape) whose value is neither in [0, size) nor *allowed (null: no such value); -1
  // where there is none.
  std::int64_t (*first_outside)(Workspace&, const TensorRef& ids, std::int64_t size, const std::int64_t* allowed);
  // y[o, i, j] = x[o, index[o, i, j], j]. x (outer, size, inner), index and y (outer, n, inner). Any dtype.
  void (*gather)(Workspace&, const TensorRef& x, const TensorRef& index, const TensorRef& y);
  // gx = 0; gx[o, index[o, i, j], j] += gy[o, i, j]. f32, f64.
  void (*gather_backward)(Workspace&, const TensorRef& gy, const TensorRef& index, const TensorRef& gx);
  // y[o, i, :] = x[o, ids[i], :]. x (outer, size, inner), ids (n), y (outer, n, inner). Any dtype.
  void (*select_rows)(Workspace&, const TensorRef& x, const TensorRef& ids, const TensorRef& y);
  // gx[o, r, :] = sum of gy[o, i, :] over the i with ids[i] = r, in order; 0 for r = skipped. f32, f64.
  void (*select_rows_backward)(Workspace&, const TensorRef& gy, const TensorRef& ids, std::int64_t skipped,
                               const TensorRef& gx);
  // y[i, c] = (ids[i] == c). ids (n), y (n, classes). Any dtype.
  void (*one_hot)(Workspace&, const TensorRef& ids, const TensorRef& y);
  // y = mask ? *value : x. x, mask (bool), y of one shape; value points to one element of x's dtype in host memory.
  void (*masked_fill)(Workspace&, const TensorRef& x, const TensorRef& mask, const void* value, const TensorRef& y);
};

extern const IndexKernels cpu_index_kernels;
const IndexKernels& cuda_index_kernels();
inline const IndexKernels& index_kernels(DeviceType device) {
  return select_kernels(device, cpu_index_kernels, cuda_index_kernels);
}

}  // namespace polygrad

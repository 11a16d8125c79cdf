// The ops that `polygrad_bench op` measures, by family, each with the fewest bytes that it can move.
//
// Where this stands: beside op.cpp, which measures them. A new op is one entry in op_subjects.cpp.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/tensor.h"

namespace polygrad::bench {

struct OpSubject {
  const char* family;  // as the files of ops/ are called
  const char* name;
  const char* shape;  // where --shape gives none: a shape of the training step, or so long that it shows
  // Tensors of x's size that the forward reads and writes at the least, and the backward (0: there is none). What an
  // op moves beyond them is part of its cost. In place the share of a copy can exceed 1: what a copy writes, the caches
  // read first, which nobody counts; what an update writes has been read anyway.
  double forward_tensors, backward_tensors;
  // Makes the work on x, a leaf with a gradient; a run gives the result, or an undefined tensor for work in place.
  std::function<std::function<Tensor()>(const Tensor& x)> prepare;
};

const std::vector<OpSubject>& op_subjects();

}  // namespace polygrad::bench

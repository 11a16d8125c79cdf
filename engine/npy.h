// .npy files (NumPy's array format, version 1.0): writing only.
#pragma once

#include <string>

#include "engine/tensor.h"

namespace polygrad {

// f32, f64, f16, i64, i32, u8 and bool as they are; bf16 as f32. Written beside the target, synced and renamed. Throws
// IoError.
void save_npy(const std::string& path, const Tensor& tensor);

}  // namespace polygrad

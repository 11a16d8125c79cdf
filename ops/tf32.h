// Whether products of f32 matrices on a GPU may round their factors to TF32 (10 bits of mantissa instead of 23), which
// tensor cores multiply several times as fast. Off unless asked for: a product of 64·197·1536 terms has a relative
// error of 3e-4 with it, and 4e-7 without.
#pragma once

namespace polygrad {

// For all threads, from their next product on.
void set_allow_tf32(bool allow);
bool allow_tf32();

}  // namespace polygrad

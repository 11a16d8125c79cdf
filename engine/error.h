// The error tree of the whole library. Every failure that a caller can meet is one of these types.
//
// Where this stands: the bottom of engine/; everything includes it and it includes nothing of ours.
// Read next: shape.h.
//
// A message has one form, so that it can be read and tested:
//     [op] what is wrong: both shapes; expected ..., got ...; hint
// The libraries never print, abort or exit. Programs map the types to exit codes (apps/training/exit_code.h).
#pragma once

#include <stdexcept>
#include <string>

namespace polygrad {

// Root of the tree; catch this one to catch everything polygrad throws on purpose.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

// Shapes that do not fit together, or a tensor of the wrong rank.
class ShapeError : public Error {
 public:
  using Error::Error;
};
// A dtype the operation does not take; dtypes are never promoted silently.
class DTypeError : public Error {
 public:
  using Error::Error;
};
// A device that is not there, or tensors on different devices.
class DeviceError : public Error {
 public:
  using Error::Error;
};
// An index, dimension or class id outside its range.
class IndexError : public Error {
 public:
  using Error::Error;
};
// An argument whose value makes no sense (a negative rate, an empty list).
class ValueError : public Error {
 public:
  using Error::Error;
};
// A combination that has no kernel, or an operation without a gradient that was asked for one.
class NotImplementedError : public Error {
 public:
  using Error::Error;
};
// The allocator's limit or the machine's memory is exhausted; says requested, in use, cached.
class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};
// A CUDA runtime, cuBLAS or cuDNN call failed; says the call, the status and the shapes.
class CudaError : public Error {
 public:
  using Error::Error;
};
// A file could not be read or written (missing, damaged, no space).
class IoError : public Error {
 public:
  using Error::Error;
};
// A data set is missing, malformed or inconsistent.
class DataError : public Error {
 public:
  using Error::Error;
};
// A configuration that is mistyped or cannot be built.
class ConfigError : public Error {
 public:
  using Error::Error;
};
// Misuse of the autograd graph: in-place edits of recorded tensors, a second backward, a missing gradient.
class GradError : public Error {
 public:
  using Error::Error;
};
// A NaN or infinity where a finite number is required.
class NumericError : public Error {
 public:
  using Error::Error;
};
// A broken promise of the library itself; please report it.
class InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace polygrad

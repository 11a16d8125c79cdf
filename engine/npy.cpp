// The .npy writer; see npy.h. Source: NumPy's format description (NEP 1), version 1.0.
#include "engine/npy.h"

#include <bit>
#include <string>

#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"

namespace polygrad {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are written as they lie in memory");

const char* npy_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "<f4";
    case DType::f64:
      return "<f8";
    case DType::f16:
      return "<f2";
    case DType::i64:
      return "<i8";
    case DType::i32:
      return "<i4";
    case DType::u8:
      return "|u1";
    case DType::boolean:
      return "|b1";
    case DType::bf16:
      break;  // NumPy has none; the caller widens it
  }
  throw InternalError(format("[save_npy] no NumPy type for dtype {}", to_string(dtype)));
}

// A Python tuple: "()", "(3,)", "(2, 3)".
std::string python_tuple(const Shape& shape) {
  if (shape.dim() == 1) return format("({},)", shape[0]);
  return to_string(shape);
}

std::string npy_header(DType dtype, const Shape& shape) {
  constexpr std::size_t kAlignment = 64, kPrefix = 10;  // magic, version and the length field
  std::string text =
      format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", npy_type(dtype), python_tuple(shape));
  const std::size_t unpadded = kPrefix + text.size() + 1;
  text.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  text += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

}  // namespace

void save_npy(const std::string& path, const Tensor& tensor) {
  if (!tensor.defined()) throw ValueError(format("[save_npy] an undefined tensor cannot be written to '{}'", path));
  const DType dtype = tensor.dtype() == DType::bf16 ? DType::f32 : tensor.dtype();
  const Tensor data = tensor.detach().to(Device::cpu()).to(dtype).contiguous();
  const std::string header = npy_header(dtype, data.shape());
  AtomicFile file(path);
  file.write(header.data(), header.size());
  file.write(data.ref().data, static_cast<std::size_t>(data.numel()) * dtype_size(dtype));
  file.commit();
}

}  // namespace polygrad

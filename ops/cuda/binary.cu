// Elementwise maps of two tensors with broadcasting, on a GPU.
#include "ops/kernels/binary.h"

#include "ops/cuda/elementwise.h"

namespace polygrad::cuda {
namespace {

template <class F>
struct Value {
  template <class C>
  POLYGRAD_INLINE C operator()(C a, C b) const {
    return F::value(a, b);
  }
};
template <class F, int kWhich>
struct Gradient {
  template <class C>
  POLYGRAD_INLINE C operator()(C g, C a, C b) const {
    return kWhich == 0 ? F::gradient_a(g, a, b) : F::gradient_b(g, a, b);
  }
};

template <class F>
void forward(Workspace&, const TensorRef& a, const TensorRef& b, const TensorRef& out) {
  dispatch_compute(out.dtype, [&](auto tag) {
    using C = decltype(tag);
    map<C, C>(F::kName, Value<F>{}, {&a, &b}, out);
  });
}

template <class F, int kWhich>
void backward(Workspace&, const TensorRef& g, const TensorRef& a, const TensorRef& b, const TensorRef& out) {
  dispatch_compute(g.dtype, [&](auto tag) {
    using C = decltype(tag);
    map<C, C>(F::kName, Gradient<F, kWhich>{}, {&g, &a, &b}, out);
  });
}

// --- comparisons ----------------------------------------------------------------------------------------------------

struct Equal {
  template <class C>
  POLYGRAD_INLINE bool operator()(C a, C b) const {
    return a == b;
  }
};
struct NotEqual {
  template <class C>
  POLYGRAD_INLINE bool operator()(C a, C b) const {
    return a != b;
  }
};
struct Less {
  template <class C>
  POLYGRAD_INLINE bool operator()(C a, C b) const {
    return a < b;
  }
};
struct LessEqual {
  template <class C>
  POLYGRAD_INLINE bool operator()(C a, C b) const {
    return a <= b;
  }
};

// a > b is b < a: four kernels do for the six comparisons.
template <class T>
void compare_as(Comparison comparison, const TensorRef& a, const TensorRef& b, const TensorRef& out) {
  switch (comparison) {
    case Comparison::eq:
      return map<T, bool>("eq", Equal{}, {&a, &b}, out);
    case Comparison::ne:
      return map<T, bool>("ne", NotEqual{}, {&a, &b}, out);
    case Comparison::lt:
      return map<T, bool>("lt", Less{}, {&a, &b}, out);
    case Comparison::le:
      return map<T, bool>("le", LessEqual{}, {&a, &b}, out);
    case Comparison::gt:
      return map<T, bool>("gt", Less{}, {&b, &a}, out);
    case Comparison::ge:
      return map<T, bool>("ge", LessEqual{}, {&b, &a}, out);
  }
}

void compare(Workspace&, Comparison comparison, const TensorRef& a, const TensorRef& b, const TensorRef& out) {
  switch (a.dtype) {
    case DType::i64:
      return compare_as<std::int64_t>(comparison, a, b, out);
    case DType::i32:
      return compare_as<std::int32_t>(comparison, a, b, out);
    case DType::u8:
    case DType::boolean:  // one byte, compared as a number
      return compare_as<std::uint8_t>(comparison, a, b, out);
    default:
      dispatch_compute(a.dtype, [&](auto tag) { compare_as<decltype(tag)>(comparison, a, b, out); });
  }
}

// A gradient that reads neither operand is g or -g, and the front needs no kernel for it.
template <class F>
constexpr BinaryKernels::Arithmetic arithmetic() {
  BinaryKernels::Arithmetic entry = {forward<F>, {nullptr, nullptr}};
  if constexpr (F::kReads[0][0] || F::kReads[0][1]) entry.backward[0] = backward<F, 0>;
  if constexpr (F::kReads[1][0] || F::kReads[1][1]) entry.backward[1] = backward<F, 1>;
  return entry;
}

constexpr BinaryKernels kKernels = {
    arithmetic<functors::Add>(),
    arithmetic<functors::Sub>(),
    arithmetic<functors::Mul>(),
    arithmetic<functors::Div>(),
    arithmetic<functors::Maximum>(),
    arithmetic<functors::Minimum>(),
    compare,
};

}  // namespace
}  // namespace polygrad::cuda

namespace polygrad {

const BinaryKernels& cuda_binary_kernels() { return cuda::kKernels; }

}  // namespace polygrad

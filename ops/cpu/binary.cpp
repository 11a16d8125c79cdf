// Elementwise maps of two tensors with broadcasting, on the CPU.
//
// The output is cut into flat chunks. Dimensions that all operands step through alike are merged first, so that equal
// shapes become one long loop, and a row added to a matrix a loop for each row.
#include "ops/kernels/binary.h"

#include "engine/parallel.h"
#include "ops/cpu/floating.h"

namespace polygrad {
namespace {

constexpr std::int64_t kGrain = 16384;
constexpr int kMaxDims = 8;

// How kOperands tensors are read while a contiguous output is written in order. At least one dimension, no size 1 but
// in a plan of a single element.
template <int kOperands>
struct Plan {
  int dim = 0;
  std::int64_t sizes[kMaxDims];
  std::int64_t strides[kOperands][kMaxDims];

  Plan(const TensorRef& out, const TensorRef* const (&operands)[kOperands]) {
    for (int i = 0; i < out.dim; ++i) {
      if (out.sizes[i] != 1) append(out.sizes[i], out.dim - i, operands);
    }
    if (dim == 0) append(1, 0, operands);
  }

  // Adds the dimension that is the `from_right`th counted from the right (1: the last; 0: none), or merges it with the
  // dimension before it.
  void append(std::int64_t size, int from_right, const TensorRef* const (&operands)[kOperands]) {
    std::int64_t stride[kOperands];
    bool merges = dim > 0;
    for (int k = 0; k < kOperands; ++k) {
      const TensorRef& ref = *operands[k];
      const int i = ref.dim - from_right;
      stride[k] = from_right > 0 && i >= 0 && ref.sizes[i] != 1 ? ref.strides[i] : 0;
      merges = merges && strides[k][dim - 1] == stride[k] * size;
    }
    if (!merges) ++dim;
    sizes[dim - 1] = merges ? sizes[dim - 1] * size : size;
    for (int k = 0; k < kOperands; ++k) strides[k][dim - 1] = stride[k];
  }

  std::int64_t inner() const { return sizes[dim - 1]; }
  std::int64_t inner_stride(int k) const { return strides[k][dim - 1]; }
};

// Calls row(position in the output, count, operands' offsets) for each piece of an innermost row in [begin, end).
template <int kOperands, class Row>
void for_each_row(const Plan<kOperands>& plan, std::int64_t begin, std::int64_t end, const Row& row) {
  const std::int64_t inner = plan.inner();
  std::int64_t index[kMaxDims] = {}, offsets[kOperands] = {};
  std::int64_t rest = begin / inner, at = begin % inner;
  for (int i = plan.dim - 2; i >= 0; --i) {
    index[i] = rest % plan.sizes[i];
    rest /= plan.sizes[i];
    for (int k = 0; k < kOperands; ++k) offsets[k] += index[i] * plan.strides[k][i];
  }
  while (begin < end) {
    const std::int64_t count = inner - at < end - begin ? inner - at : end - begin;
    std::int64_t starts[kOperands];
    for (int k = 0; k < kOperands; ++k) starts[k] = offsets[k] + at * plan.inner_stride(k);
    row(begin, count, starts);
    begin += count;
    at = 0;
    for (int i = plan.dim - 2; i >= 0; --i) {
      for (int k = 0; k < kOperands; ++k) offsets[k] += plan.strides[k][i];
      if (++index[i] < plan.sizes[i]) break;
      for (int k = 0; k < kOperands; ++k) offsets[k] -= index[i] * plan.strides[k][i];
      index[i] = 0;
    }
  }
}

// out[i] = f(i-th elements). The strides of 1 and 0 that nearly all calls have are constants in loops of their own.
template <class F, class T, class R>
void row_of_two(F f, const T* __restrict a, std::int64_t sa, const T* __restrict b, std::int64_t sb, R* __restrict out,
                std::int64_t n) {
  if (sa == 1 && sb == 1) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = f(a[i], b[i]);
  } else if (sa == 1 && sb == 0) {
    const T second = *b;
    for (std::int64_t i = 0; i < n; ++i) out[i] = f(a[i], second);
  } else if (sa == 0 && sb == 1) {
    const T first = *a;
    for (std::int64_t i = 0; i < n; ++i) out[i] = f(first, b[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i] = f(a[i * sa], b[i * sb]);
  }
}

template <class F, class T>
void row_of_gradient(F f, const T* __restrict g, const T* __restrict a, std::int64_t sa, const T* __restrict b,
                     std::int64_t sb, T* __restrict out, std::int64_t n) {
  if (sa == 1 && sb == 1) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = f(g[i], a[i], b[i]);
  } else if (sa == 1 && sb == 0) {
    const T second = *b;
    for (std::int64_t i = 0; i < n; ++i) out[i] = f(g[i], a[i], second);
  } else if (sa == 0 && sb == 1) {
    const T first = *a;
    for (std::int64_t i = 0; i < n; ++i) out[i] = f(g[i], first, b[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i] = f(g[i], a[i * sa], b[i * sb]);
  }
}

template <class T, class R, class F>
void map(F f, const TensorRef& a, const TensorRef& b, const TensorRef& out) {
  const Plan<2> plan(out, {&a, &b});
  parallel_for(0, out.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for_each_row(plan, begin, end, [&](std::int64_t at, std::int64_t count, const std::int64_t* offsets) {
      row_of_two(f, a.as<T>() + offsets[0], plan.inner_stride(0), b.as<T>() + offsets[1], plan.inner_stride(1),
                 out.as<R>() + at, count);
    });
  });
}

template <class T, class F>
void map_gradient(F f, const TensorRef& g, const TensorRef& a, const TensorRef& b, const TensorRef& out) {
  const Plan<2> plan(out, {&a, &b});
  parallel_for(0, out.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for_each_row(plan, begin, end, [&](std::int64_t at, std::int64_t count, const std::int64_t* offsets) {
      row_of_gradient(f, g.as<T>() + at, a.as<T>() + offsets[0], plan.inner_stride(0), b.as<T>() + offsets[1],
                      plan.inner_stride(1), out.as<T>() + at, count);
    });
  });
}

template <class F>
void forward(Workspace&, const TensorRef& a, const TensorRef& b, const TensorRef& out) {
  dispatch_floating(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    map<T, T>([](T x, T y) { return F::value(x, y); }, a, b, out);
  });
}

template <class F>
void backward_a(Workspace&, const TensorRef& g, const TensorRef& a, const TensorRef& b, const TensorRef& out) {
  dispatch_floating(g.dtype, [&](auto zero) {
    using T = decltype(zero);
    map_gradient<T>([](T upstream, T x, T y) { return F::gradient_a(upstream, x, y); }, g, a, b, out);
  });
}

template <class F>
void backward_b(Workspace&, const TensorRef& g, const TensorRef& a, const TensorRef& b, const TensorRef& out) {
  dispatch_floating(g.dtype, [&](auto zero) {
    using T = decltype(zero);
    map_gradient<T>([](T upstream, T x, T y) { return F::gradient_b(upstream, x, y); }, g, a, b, out);
  });
}

// a > b is b < a: four loops do for the six comparisons.
template <class T>
void compare_as(Comparison comparison, const TensorRef& a, const TensorRef& b, const TensorRef& out) {
  switch (comparison) {
    case Comparison::eq:
      return map<T, bool>([](T x, T y) { return x == y; }, a, b, out);
    case Comparison::ne:
      return map<T, bool>([](T x, T y) { return x != y; }, a, b, out);
    case Comparison::lt:
      return map<T, bool>([](T x, T y) { return x < y; }, a, b, out);
    case Comparison::le:
      return map<T, bool>([](T x, T y) { return x <= y; }, a, b, out);
    case Comparison::gt:
      return compare_as<T>(Comparison::lt, b, a, out);
    case Comparison::ge:
      return compare_as<T>(Comparison::le, b, a, out);
  }
}

void compare(Workspace&, Comparison comparison, const TensorRef& a, const TensorRef& b, const TensorRef& out) {
  switch (a.dtype) {
    case DType::f32:
      return compare_as<float>(comparison, a, b, out);
    case DType::f64:
      return compare_as<double>(comparison, a, b, out);
    case DType::i64:
      return compare_as<std::int64_t>(comparison, a, b, out);
    case DType::i32:
      return compare_as<std::int32_t>(comparison, a, b, out);
    default:  // u8 and bool: one byte, compared as a number
      return compare_as<std::uint8_t>(comparison, a, b, out);
  }
}

// A gradient that reads neither operand is g or -g, and the front needs no kernel for it.
template <class F>
constexpr BinaryKernels::Arithmetic arithmetic() {
  BinaryKernels::Arithmetic entry = {forward<F>, {nullptr, nullptr}};
  if constexpr (F::kReads[0][0] || F::kReads[0][1]) entry.backward[0] = backward_a<F>;
  if constexpr (F::kReads[1][0] || F::kReads[1][1]) entry.backward[1] = backward_b<F>;
  return entry;
}

}  // namespace

constinit const BinaryKernels cpu_binary_kernels = {
    arithmetic<functors::Add>(),
    arithmetic<functors::Sub>(),
    arithmetic<functors::Mul>(),
    arithmetic<functors::Div>(),
    arithmetic<functors::Maximum>(),
    arithmetic<functors::Minimum>(),
    compare,
};

}  // namespace polygrad

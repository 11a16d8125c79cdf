// CPU kernels of the matmul family: products on ops/cpu/gemm.h, with the linear layer's epilogues.
#include "ops/kernels/matmul.h"

#include <algorithm>

#include "engine/bfloat16.h"
#include "engine/parallel.h"
#include "ops/cpu/floating.h"
#include "ops/cpu/gelu_block.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/gemm_bf16.h"
#include "ops/kernels/unary_functors.h"

namespace polygrad {
namespace cpu {
namespace {

constexpr std::int64_t kSumRows = 128;   // rows a partial column sum takes
constexpr std::int64_t kSumCols = 1024;  // columns at once: the partial sum stays in the L1 cache

// --- from references to a product -----------------------------------------------------------------------------------

// A batch of products, before its dimensions are merged.
template <class T, class Out = T>
Gemm<T, Out> describe_product(const TensorRef& a, const TensorRef& b, const TensorRef& out) {
  const int row = out.dim - 2, col = out.dim - 1;
  Gemm<T, Out> product;
  product.m = out.sizes[row];
  product.n = out.sizes[col];
  product.k = a.sizes[col];
  const MatrixLayout left = matrix_layout(product.m, product.k, a.strides[row], a.strides[col]);
  const MatrixLayout right = matrix_layout(product.k, product.n, b.strides[row], b.strides[col]);
  const MatrixLayout result = matrix_layout(product.m, product.n, out.strides[row], out.strides[col]);
  product.trans_a = left.transposed;
  product.trans_b = right.transposed;
  product.a = a.as<const T>();
  product.b = b.as<const T>();
  product.c = out.as<Out>();
  product.lda = left.leading;
  product.ldb = right.leading;
  product.ldc = result.leading;

  for (int d = 0; d < row; ++d) {
    const std::int64_t size = out.sizes[d];
    if (size == 1) continue;
    const int last = product.batch_dims - 1;
    // Neighbours that lie behind one another in all three become one dimension.
    if (last >= 0 && product.batch_a[last] == size * a.strides[d] && product.batch_b[last] == size * b.strides[d] &&
        product.batch_c[last] == size * out.strides[d]) {
      product.batch_sizes[last] *= size;
    } else {
      product.batch_sizes[++product.batch_dims - 1] = size;
    }
    const int place = product.batch_dims - 1;
    product.batch_a[place] = a.strides[d];
    product.batch_b[place] = b.strides[d];
    product.batch_c[place] = out.strides[d];
  }
  return product;
}

// The innermost batch dimension becomes rows (one B for all: (batch, m, k) x (k, n)) or part of the sum (one C for all:
// the gradient of such a B), where the matrices lie behind one another: one large product is faster than many small.
template <class T, class Out>
void fold_batch(Gemm<T, Out>& product) {
  const int last = product.batch_dims - 1;
  if (last < 0) return;
  const std::int64_t size = product.batch_sizes[last], stride_a = product.batch_a[last];
  const std::int64_t stride_b = product.batch_b[last], stride_c = product.batch_c[last];
  if (stride_b == 0 && stride_c != 0 && !product.trans_a) {
    // The distance of two rows of a matrix with a single one is free: take the distance of two matrices.
    const std::int64_t lda = product.m == 1 ? stride_a : product.lda, ldc = product.m == 1 ? stride_c : product.ldc;
    if (lda < std::max<std::int64_t>(1, product.k) || ldc < std::max<std::int64_t>(1, product.n)) return;
    if (stride_a != product.m * lda || stride_c != product.m * ldc) return;
    product.lda = lda;
    product.ldc = ldc;
    product.m *= size;
    --product.batch_dims;
  } else if (stride_c == 0 && product.trans_a && !product.trans_b) {
    const std::int64_t lda = product.k == 1 ? stride_a : product.lda, ldb = product.k == 1 ? stride_b : product.ldb;
    if (lda < std::max<std::int64_t>(1, product.m) || ldb < std::max<std::int64_t>(1, product.n)) return;
    if (stride_a != product.k * lda || stride_b != product.k * ldb) return;
    product.lda = lda;
    product.ldb = ldb;
    product.k *= size;
    --product.batch_dims;
  }
}

template <class T, class Out = T>
void matmul_kernel(Workspace& workspace, const TensorRef& a, const TensorRef& b, const TensorRef& out) {
  Gemm<T, Out> product = describe_product<T, Out>(a, b, out);
  fold_batch(product);
  gemm(workspace, product);
}

// x weightᵀ: (rows, in) x (in, out).
template <class T>
Gemm<T> describe_linear(const TensorRef& x, const TensorRef& weight, const TensorRef& y) {
  TensorRef turned = weight;
  turned.sizes[0] = weight.sizes[1];
  turned.sizes[1] = weight.sizes[0];
  turned.strides[0] = weight.strides[1];
  turned.strides[1] = weight.strides[0];
  return describe_product<T>(x, turned, y);
}

// --- epilogues: on blocks of contiguous (rows, out) results --------------------------------------------------------

template <class T>
void linear_kernel(Workspace& workspace, const TensorRef& x, const TensorRef& weight, const TensorRef& bias,
                   const TensorRef& y) {
  const Gemm<T> product = describe_linear<T>(x, weight, y);
  if (!bias.present()) return gemm(workspace, product);
  const T* add = bias.as<const T>();
  const auto epilogue = [&](std::int64_t offset, std::int64_t rows, std::int64_t cols, std::int64_t col) {
    for (std::int64_t i = 0; i < rows; ++i) {
      T* row = product.c + offset + i * product.ldc;
      for (std::int64_t j = 0; j < cols; ++j) row[j] += add[col + j];
    }
  };
  gemm(workspace, product, epilogue);
}

template <class T>
void gelu_row(T* __restrict pre, T* __restrict y, const T* __restrict add, std::int64_t cols) {
  for (std::int64_t j = 0; j < cols; ++j) {
    const T z = pre[j] + add[j];
    pre[j] = z;
    y[j] = functors::Gelu::value(z);
  }
}
template <class T>
void gelu_row(T* __restrict y, const T* __restrict add, std::int64_t cols) {
  for (std::int64_t j = 0; j < cols; ++j) y[j] = functors::Gelu::value(y[j] + add[j]);
}

template <class T>
void linear_gelu_kernel(Workspace& workspace, const TensorRef& x, const TensorRef& weight, const TensorRef& bias,
                        const TensorRef& pre, const TensorRef& y) {
  const std::int64_t out = y.sizes[1];
  const T* add = bias.as<const T>();
  if (!bias.present()) {
    T* zeros = workspace.allocate<T>(out);
    std::fill(zeros, zeros + out, T(0));
    add = zeros;
  }
  const Gemm<T> product = describe_linear<T>(x, weight, pre.present() ? pre : y);
  T* result = y.as<T>();
  const bool keep = pre.present();
  const auto epilogue = [&](std::int64_t offset, std::int64_t rows, std::int64_t cols, std::int64_t col) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t place = offset + i * product.ldc;
      if (keep) {
        gelu_row(product.c + place, result + place, add + col, cols);
      } else {
        gelu_row(result + place, add + col, cols);
      }
    }
  };
  gemm(workspace, product, epilogue);
}

// --- column sums ---------------------------------------------------------------------------------------------------

// sums[j] = sum over i of row(i)[j], where row(i, ...) is called once for each row and may compute it, in the memory
// for one row that it is given. Groups of kSumRows rows are summed in T, the groups then in f64, both in order.
template <class T, class Row>
void sum_rows(Workspace& workspace, std::int64_t rows, std::int64_t cols, T* sums, const Row& row) {
  const std::int64_t groups = (rows + kSumRows - 1) / kSumRows;
  T* partial = sums == nullptr ? nullptr : workspace.allocate<T>(groups * cols);
  parallel_for(0, groups, 1, [&](std::int64_t begin, std::int64_t end) {
    T computed[kSumCols];
    for (std::int64_t group = begin; group < end; ++group) {
      const std::int64_t last = std::min(rows, (group + 1) * kSumRows);
      for (std::int64_t col = 0; col < cols; col += kSumCols) {
        const std::int64_t width = std::min(kSumCols, cols - col);
        T* __restrict total = sums == nullptr ? nullptr : partial + group * cols + col;
        if (total != nullptr) std::fill(total, total + width, T(0));
        for (std::int64_t i = group * kSumRows; i < last; ++i) {
          const T* __restrict values = row(i, col, width, computed);
          if (total == nullptr) continue;
          for (std::int64_t j = 0; j < width; ++j) total[j] += values[j];
        }
      }
    }
  });
  if (sums == nullptr) return;
  parallel_for(0, cols, 256, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; ++j) {
      double total = 0;
      for (std::int64_t group = 0; group < groups; ++group) total += static_cast<double>(partial[group * cols + j]);
      sums[j] = static_cast<T>(total);
    }
  });
}

template <class T>
void column_sums_kernel(Workspace& workspace, const TensorRef& x, const TensorRef& sums) {
  const T* values = x.as<const T>();
  const std::int64_t cols = x.sizes[1];
  sum_rows<T>(workspace, x.sizes[0], cols, sums.as<T>(),
              [=](std::int64_t i, std::int64_t col, std::int64_t, T*) { return values + i * cols + col; });
}

void column_sums_bf16(Workspace& workspace, const TensorRef& x, const TensorRef& sums) {
  const BFloat16* values = x.as<const BFloat16>();
  const std::int64_t cols = x.sizes[1];
  sum_rows<float>(workspace, x.sizes[0], cols, sums.as<float>(),
                  [=](std::int64_t i, std::int64_t col, std::int64_t width, float* row) {
                    widen(values + i * cols + col, row, width);
                    return static_cast<const float*>(row);
                  });
}

template <class T>
void gelu_gradient_row(const T* __restrict grad_y, const T* __restrict pre, T* __restrict grad_pre, std::int64_t cols) {
  for (std::int64_t j = 0; j < cols; ++j) grad_pre[j] = grad_y[j] * functors::Gelu::derivative(pre[j], T(0));
}

template <class T>
void linear_gelu_backward_kernel(Workspace& workspace, const TensorRef& grad_y, const TensorRef& pre,
                                 const TensorRef& grad_pre, const TensorRef& grad_bias) {
  const std::int64_t cols = pre.sizes[1];
  const T *upper = grad_y.as<const T>(), *z = pre.as<const T>();
  T* result = grad_pre.as<T>();
  sum_rows<T>(workspace, pre.sizes[0], cols, grad_bias.as<T>(),
              [=](std::int64_t i, std::int64_t col, std::int64_t width, T*) {
                const std::int64_t place = i * cols + col;
                gelu_gradient_row(upper + place, z + place, result + place, width);
                return static_cast<const T*>(result + place);
              });
}

// The bias gets the sums before the rounding.
void linear_gelu_backward_bf16(Workspace& workspace, const TensorRef& grad_y, const TensorRef& pre,
                               const TensorRef& grad_pre, const TensorRef& grad_bias) {
  const std::int64_t cols = pre.sizes[1];
  const BFloat16 *upper = grad_y.as<const BFloat16>(), *z = pre.as<const BFloat16>();
  BFloat16* result = grad_pre.as<BFloat16>();
  sum_rows<float>(workspace, pre.sizes[0], cols, grad_bias.as<float>(),
                  [=](std::int64_t i, std::int64_t col, std::int64_t width, float* __restrict row) {
                    const BFloat16 *g = upper + i * cols + col, *x = z + i * cols + col;
                    for (std::int64_t j = 0; j < width; ++j) {
                      row[j] = widen(g[j]) * functors::Gelu::derivative(widen(x[j]), 0.0f);
                    }
                    round_row(row, result + i * cols + col, width);
                    return static_cast<const float*>(row);
                  });
}

// --- products in bf16 by a packed weight ----------------------------------------------------------------------------

void pack(Workspace&, const TensorRef& b, const TensorRef& packed) {
  const std::int64_t k = b.sizes[0], n = b.sizes[1];
  const MatrixLayout layout = matrix_layout(k, n, b.strides[0], b.strides[1]);
  pack_bf16(layout.transposed, n, k, b.as<const float>(), layout.leading, packed.as<BFloat16>());
}

template <class Out>
Gemm<BFloat16, Out> describe_packed(const TensorRef& x, const TensorRef& packed, const TensorRef& bias,
                                    const TensorRef& y) {
  Gemm<BFloat16, Out> product;
  product.packed_b = true;
  product.m = x.sizes[0];
  product.k = x.sizes[1];
  product.n = y.sizes[1];
  product.a = x.as<const BFloat16>();
  product.lda = product.k;
  product.b = packed.as<const BFloat16>();
  product.c = y.as<Out>();
  product.ldc = product.n;
  product.bias = bias.as<const float>();
  return product;
}

void linear_packed(Workspace& workspace, const TensorRef& x, const TensorRef& packed, const TensorRef& bias,
                   const TensorRef& y) {
  if (y.dtype == DType::f32) return gemm(workspace, describe_packed<float>(x, packed, {}, y));
  gemm(workspace, describe_packed<BFloat16>(x, packed, bias, y));
}

void linear_gelu_packed(Workspace& workspace, const TensorRef& x, const TensorRef& packed, const TensorRef& bias,
                        const TensorRef& pre, const TensorRef& y) {
  const auto product = describe_packed<BFloat16>(x, packed, bias, pre.present() ? pre : y);
  BFloat16* result = y.as<BFloat16>();
  const auto epilogue = [&](std::int64_t offset, std::int64_t rows, std::int64_t cols, std::int64_t) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const BFloat16* from = product.c + offset + i * product.ldc;
      BFloat16* to = result + offset + i * product.ldc;
      gelu_block(from, to, cols);
    }
  };
  gemm(workspace, product, epilogue);
}

// --- the table -----------------------------------------------------------------------------------------------------

void matmul(Workspace& workspace, const TensorRef& a, const TensorRef& b, const TensorRef& out) {
  if (a.dtype == DType::bf16) {
    return out.dtype == DType::bf16 ? matmul_kernel<BFloat16>(workspace, a, b, out)
                                    : matmul_kernel<BFloat16, float>(workspace, a, b, out);
  }
  dispatch_floating(out.dtype, [&](auto zero) { matmul_kernel<decltype(zero)>(workspace, a, b, out); });
}
void linear(Workspace& workspace, const TensorRef& x, const TensorRef& weight, const TensorRef& bias,
            const TensorRef& y) {
  dispatch_floating(y.dtype, [&](auto zero) { linear_kernel<decltype(zero)>(workspace, x, weight, bias, y); });
}
void linear_gelu(Workspace& workspace, const TensorRef& x, const TensorRef& weight, const TensorRef& bias,
                 const TensorRef& pre, const TensorRef& y) {
  dispatch_floating(y.dtype,
                    [&](auto zero) { linear_gelu_kernel<decltype(zero)>(workspace, x, weight, bias, pre, y); });
}
void linear_gelu_backward(Workspace& workspace, const TensorRef& grad_y, const TensorRef& pre,
                          const TensorRef& grad_pre, const TensorRef& grad_bias) {
  if (pre.dtype == DType::bf16) return linear_gelu_backward_bf16(workspace, grad_y, pre, grad_pre, grad_bias);
  dispatch_floating(pre.dtype, [&](auto zero) {
    linear_gelu_backward_kernel<decltype(zero)>(workspace, grad_y, pre, grad_pre, grad_bias);
  });
}
void column_sums(Workspace& workspace, const TensorRef& x, const TensorRef& sums) {
  if (x.dtype == DType::bf16) return column_sums_bf16(workspace, x, sums);
  dispatch_floating(x.dtype, [&](auto zero) { column_sums_kernel<decltype(zero)>(workspace, x, sums); });
}

}  // namespace
}  // namespace cpu

const MatmulKernels cpu_matmul_kernels = {cpu::matmul,      cpu::linear, cpu::linear_gelu,   cpu::linear_gelu_backward,
                                          cpu::column_sums, cpu::pack,   cpu::linear_packed, cpu::linear_gelu_packed};

}  // namespace polygrad

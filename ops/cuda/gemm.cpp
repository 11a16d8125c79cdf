// Matrix products by cuBLASLt.
//
// cuBLASLt's matrices are column-major, and a row-major matrix is the transposed of one: it is asked for Cᵀ = op(B)ᵀ
// op(A)ᵀ, with B first. A thread's context holds the handle, a fixed workspace, and a plan for each shape: descriptors,
// and the algorithm that the library's heuristic put first.
#include "ops/cuda/gemm.h"

#include <cublasLt.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>

#include "engine/backend/cuda/context.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/memory.h"
#include "ops/tf32.h"

namespace polygrad::cuda {

std::string describe(const Gemm& p) {
  return format("{} ({}, {}){} x ({}, {}){} -> {}, batch {}", to_string(p.dtype), p.m, p.k, p.trans_a ? "ᵀ" : "", p.k,
                p.n, p.trans_b ? "ᵀ" : "", to_string(p.out_dtype), p.batch);
}

namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

void check_blas(cublasStatus_t status, const char* call, const Gemm& product) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CudaError(format("[gemm] {} failed: {}; {}", call, cublasLtGetStatusString(status), describe(product)));
}

// Descriptors, destroyed with their owner.
struct DestroyLayout {
  void operator()(cublasLtMatrixLayout_t layout) const { cublasLtMatrixLayoutDestroy(layout); }
};
struct DestroyProduct {
  void operator()(cublasLtMatmulDesc_t product) const { cublasLtMatmulDescDestroy(product); }
};
struct DestroyPreference {
  void operator()(cublasLtMatmulPreference_t preference) const { cublasLtMatmulPreferenceDestroy(preference); }
};
template <class Handle, class Destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;
using Layout = Owned<cublasLtMatrixLayout_t, DestroyLayout>;

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return CUDA_R_64F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

struct Plan {
  Owned<cublasLtMatmulDesc_t, DestroyProduct> product;
  Layout first, second, result;  // op(B)ᵀ, op(A)ᵀ, Cᵀ
  cublasLtMatmulAlgo_t algorithm;
  bool fuses_bias = false;
};

// The largest power of two up to 256 that an address is a multiple of.
std::uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer) | 256u;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

class Blas {
 public:
  explicit Blas(int device) : workspace_(detail::allocate(kWorkspaceBytes, Device::cuda(device))) {
    if (const cublasStatus_t status = cublasLtCreate(&handle_); status != CUBLAS_STATUS_SUCCESS) {
      throw CudaError(format("[gemm] cublasLtCreate failed: {}", cublasLtGetStatusString(status)));
    }
  }

  void run(const Gemm& p) {
    const Plan& plan = plan_of(p);
    if (plan.fuses_bias) {
      check_blas(
          cublasLtMatmulDescSetAttribute(plan.product.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias, sizeof p.bias),
          "cublasLtMatmulDescSetAttribute", p);
    }
    const double wide[2] = {p.alpha, p.addend != nullptr ? 1.0 : 0.0};
    const float narrow[2] = {static_cast<float>(p.alpha), p.addend != nullptr ? 1.0f : 0.0f};
    const void* alpha = p.dtype == DType::f64 ? static_cast<const void*>(&wide[0]) : &narrow[0];
    const void* beta = p.dtype == DType::f64 ? static_cast<const void*>(&wide[1]) : &narrow[1];
    check_blas(cublasLtMatmul(handle_, plan.product.get(), alpha, p.b, plan.first.get(), p.a, plan.second.get(), beta,
                              p.addend != nullptr ? p.addend : p.c, plan.result.get(), p.c, plan.result.get(),
                              &plan.algorithm, workspace_, kWorkspaceBytes, context().stream().handle),
               "cublasLtMatmul", p);
    if (p.bias != nullptr && !plan.fuses_bias) add_bias(p);
  }

 private:
  using Key = std::array<std::int64_t, 20>;

  static Key key_of(const Gemm& p) {
    const void* addend = p.addend != nullptr ? p.addend : p.c;
    return {static_cast<std::int64_t>(p.dtype),
            static_cast<std::int64_t>(p.out_dtype),
            p.m,
            p.n,
            p.k,
            p.trans_a,
            p.trans_b,
            p.lda,
            p.ldb,
            p.ldc,
            p.batch,
            p.stride_a,
            p.stride_b,
            p.stride_c,
            alignment_of(p.a),
            alignment_of(p.b),
            alignment_of(p.c) < alignment_of(addend) ? alignment_of(p.c) : alignment_of(addend),
            p.bias == nullptr ? 0
            : fuses_bias(p)   ? 2
                              : 1,
            p.addend != nullptr,
            rounds(p)};
  }
  // TF32 is something for f32 factors only.
  static bool rounds(const Gemm& p) { return p.dtype == DType::f32 && allow_tf32(); }
  // cuBLASLt is told the alignment of A, B, C and D, but not the bias's, and reads 16 bytes of it at a time.
  static bool fuses_bias(const Gemm& p) {
    return p.bias != nullptr && p.dtype != DType::f64 && alignment_of(p.bias) >= 16;
  }

  static Layout make_layout(const Gemm& p, DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t leading,
                            std::int64_t stride) {
    cublasLtMatrixLayout_t layout = nullptr;
    check_blas(cublasLtMatrixLayoutCreate(&layout, data_type(dtype), static_cast<std::uint64_t>(rows),
                                          static_cast<std::uint64_t>(columns), leading),
               "cublasLtMatrixLayoutCreate", p);
    Layout owned(layout);
    const auto batch = static_cast<std::int32_t>(p.batch);
    check_blas(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch),
               "cublasLtMatrixLayoutSetAttribute", p);
    check_blas(
        cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
        "cublasLtMatrixLayoutSetAttribute", p);
    return owned;
  }

  // Whether the library has an algorithm, with the bias on the way or without.
  bool make_plan(const Gemm& p, bool with_bias, Plan* plan) {
    const bool wide = p.dtype == DType::f64;
    const cublasComputeType_t compute = wide        ? CUBLAS_COMPUTE_64F
                                        : rounds(p) ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                    : CUBLAS_COMPUTE_32F;
    cublasLtMatmulDesc_t product = nullptr;
    check_blas(cublasLtMatmulDescCreate(&product, compute, wide ? CUDA_R_64F : CUDA_R_32F), "cublasLtMatmulDescCreate",
               p);
    plan->product.reset(product);
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      check_blas(cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof value),
                 "cublasLtMatmulDescSetAttribute", p);
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (with_bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
    plan->first = make_layout(p, p.dtype, p.trans_b ? p.k : p.n, p.trans_b ? p.n : p.k, p.ldb, p.stride_b);
    plan->second = make_layout(p, p.dtype, p.trans_a ? p.m : p.k, p.trans_a ? p.k : p.m, p.lda, p.stride_a);
    plan->result = make_layout(p, p.out_dtype, p.n, p.m, p.ldc, p.stride_c);
    plan->fuses_bias = with_bias;

    cublasLtMatmulPreference_t preference = nullptr;
    check_blas(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate", p);
    const Owned<cublasLtMatmulPreference_t, DestroyPreference> owned(preference);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check_blas(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
                 "cublasLtMatmulPreferenceSetAttribute", p);
    };
    const Key key = key_of(p);
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(kWorkspaceBytes));
    // Slices of k are added up in the type of the sums, in order: neither rounded between, nor in place.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(key[16]));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(key[16]));
    cublasLtMatmulHeuristicResult_t found = {};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, product, plan->first.get(), plan->second.get(), plan->result.get(),
                                       plan->result.get(), preference, 1, &found, &count);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_blas(status, "cublasLtMatmulAlgoGetHeuristic", p);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || count == 0) return false;
    check_blas(found.state, "cublasLtMatmulAlgoGetHeuristic", p);
    plan->algorithm = found.algo;
    return true;
  }

  const Plan& plan_of(const Gemm& p) {
    const Key key = key_of(p);
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
    Plan plan;
    const bool made = (fuses_bias(p) && make_plan(p, true, &plan)) || make_plan(p, false, &plan);
    if (!made) check_blas(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic", p);
    return plans_.emplace(key, std::move(plan)).first->second;
  }

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_;
  std::map<Key, Plan> plans_;
};

}  // namespace

void gemm(Workspace&, const Gemm& product) { context().kept<Blas>().run(product); }

}  // namespace polygrad::cuda

// The oneDNN provider of f32 products: dnnl_sgemm, one thread a call.
#include "ops/cpu/gemm.h"

#ifdef POLYGRAD_HAVE_ONEDNN

#include <dnnl.h>
#include <omp.h>

#include "ops/cpu/onednn.h"

namespace polygrad::cpu {

OneOpenMpThread::OneOpenMpThread() : previous_(omp_get_max_threads()) {
  if (previous_ != 1) omp_set_num_threads(1);
}
OneOpenMpThread::~OneOpenMpThread() {
  if (previous_ != 1) omp_set_num_threads(previous_);
}

void onednn_gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                 const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                 std::int64_t ldc) {
  dnnl_status_t status;
  {
    OneOpenMpThread guard;
    status = dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
  if (status != dnnl_success) throw_gemm_failure("dnnl_sgemm", status == dnnl_out_of_memory, status, m, n, k);
}

}  // namespace polygrad::cpu

#else

namespace polygrad::cpu {

void onednn_gemm(bool, bool, std::int64_t m, std::int64_t n, std::int64_t k, float, const float*, std::int64_t,
                 const float*, std::int64_t, float, float*, std::int64_t) {
  throw_gemm_failure("oneDNN (not in this build)", false, 0, m, n, k);
}

}  // namespace polygrad::cpu

#endif

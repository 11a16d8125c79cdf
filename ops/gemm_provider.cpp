#include "ops/gemm_provider.h"

#include <atomic>
#include <cstdlib>
#include <string>

#include "engine/error.h"
#include "engine/format.h"
#include "ops/cpu/gemm.h"

namespace polygrad {
namespace {

constexpr int kUnset = -1;
// The one setting of ops/ that is process-wide; a relaxed atomic, since any thread may read it inside a product.
std::atomic<int> chosen{kUnset};

void check_available(const char* where, GemmProvider provider) {
  if (has_gemm_provider(provider)) return;
  throw ValueError(format(
      "[{}] this build has no gemm provider onednn; expected eigen; configure with -DPOLYGRAD_ONEDNN=ON", where));
}

GemmProvider initial_provider() {
  const char* variable = std::getenv("POLYGRAD_GEMM");
  if (variable == nullptr || *variable == '\0') {
    return has_gemm_provider(GemmProvider::onednn) ? GemmProvider::onednn : GemmProvider::eigen;
  }
  for (const GemmProvider provider : {GemmProvider::onednn, GemmProvider::eigen}) {
    if (std::string(variable) != to_string(provider)) continue;
    check_available("POLYGRAD_GEMM", provider);
    return provider;
  }
  throw ValueError(format("[POLYGRAD_GEMM] unknown gemm provider: expected onednn or eigen, got '{}'", variable));
}

}  // namespace

const char* to_string(GemmProvider provider) { return provider == GemmProvider::onednn ? "onednn" : "eigen"; }

bool has_gemm_provider(GemmProvider provider) {
#ifdef POLYGRAD_HAVE_ONEDNN
  (void)provider;
  return true;
#else
  return provider == GemmProvider::eigen;
#endif
}

GemmProvider gemm_provider() {
  int value = chosen.load(std::memory_order_relaxed);
  if (value == kUnset) {
    static const GemmProvider initial = initial_provider();  // a throw leaves it unset: the next call throws again
    // A set_gemm_provider of another thread in this moment wins.
    if (chosen.compare_exchange_strong(value, static_cast<int>(initial), std::memory_order_relaxed)) return initial;
  }
  return static_cast<GemmProvider>(value);
}

void set_gemm_provider(GemmProvider provider) {
  check_available("set_gemm_provider", provider);
  chosen.store(static_cast<int>(provider), std::memory_order_relaxed);
}

void cpu::throw_gemm_failure(const char* provider, bool out_of_memory, int status, std::int64_t m, std::int64_t n,
                             std::int64_t k) {
  const std::string text =
      format("[matmul] {} failed with status {} for the product ({}, {}) x ({}, {})", provider, status, m, k, k, n);
  if (out_of_memory)
    throw OutOfMemoryError(text + "; its packing buffers did not fit; close other programs or use a smaller batch");
  throw InternalError(text + "; please report it");
}

}  // namespace polygrad

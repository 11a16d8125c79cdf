#include "apps/command/version_text.h"

#include "engine/format.h"
#include "engine/version.h"
#include "ops/gemm_provider.h"

namespace polygrad {

std::string version_text(const std::string& program) {
#if defined(__clang__)
  const std::string compiler = format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  const std::string compiler = format("gcc {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
  return format("{} {} ({})\ncompiler: {}\nproducts: {}{}\nCUDA: not built in", program, version(), git_id(), compiler,
                to_string(gemm_provider()), has_gemm_provider(GemmProvider::onednn) ? " (onednn, eigen)" : " (eigen)");
}

}  // namespace polygrad

#include "apps/command/version_text.h"

#include "apps/training/host.h"
#include "engine/format.h"
#include "engine/version.h"
#include "ops/gemm_provider.h"

namespace polygrad {

std::string version_text(const std::string& program) {
  return format("{} {} ({})\ncompiler: {}\nproducts: {}{}\nCUDA: not built in", program, version(), git_id(),
                compiler_text(), to_string(gemm_provider()),
                has_gemm_provider(GemmProvider::onednn) ? " (onednn, eigen)" : " (eigen)");
}

}  // namespace polygrad

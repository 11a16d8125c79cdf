// What --version prints.
#pragma once

#include <string>

namespace polygrad {

// Version, git id, compiler, provider of matrix products, CUDA architectures.
std::string version_text(const std::string& program);

}  // namespace polygrad

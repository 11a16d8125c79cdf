// The op table on the second device: every row, on the CPU and on a GPU.
#include <doctest/doctest.h>

#include <cstring>

#include "engine/error.h"
#include "engine/testing.h"
#include "tests/cuda/gpu.h"
#include "tests/op_cases/op_case.h"
#if defined(POLYGRAD_HOST_CUDA)
#include "tests/cuda/host/host_cuda.h"
#endif

using namespace polygrad;
using namespace polygrad::testing;

namespace {

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

}  // namespace

TEST_CASE("every row of the op table gives on a GPU what it gives on the CPU") {
  POLYGRAD_NEEDS_GPU();
  const UncachedGuard exact;  // memory ends where tensors end
  for (const OpRow& row : all_rows()) {
    CAPTURE(row.op);
    CAPTURE(row.name);
    std::vector<double> results;
    const std::string wrong = check_device(row, gpu(), &results);
    CHECK_MESSAGE(wrong.empty(), wrong);
    std::vector<double> again;
#if defined(POLYGRAD_HOST_CUDA)
    // Threads and blocks in the opposite order: a difference is a race.
    host_cuda::settings().order = host_cuda::Order::descending;
#endif
    check_device(row, gpu(), &again);
#if defined(POLYGRAD_HOST_CUDA)
    host_cuda::settings().order = host_cuda::Order::ascending;
#endif
    CHECK_MESSAGE(same_bits(results, again), row.op << " (" << row.name << ") gives other bits the second time");
  }
}

TEST_CASE("under a PrecisionGuard every row gives on a GPU what f32 gives on the CPU, nearly") {
  POLYGRAD_NEEDS_GPU();
  const UncachedGuard exact;
  for (const Precision precision : {Precision::bf16, Precision::f16}) {
    CAPTURE(to_string(precision));
    CHECK(precision_obstacle(precision, gpu()).empty());
    for (const OpRow& row : all_rows()) {
      const std::string wrong = check_precision(row, precision, gpu());
      CHECK_MESSAGE(wrong.empty(), wrong);
    }
  }
}

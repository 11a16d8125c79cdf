#include "ops/precision.h"

#include <utility>

#include "engine/error.h"
#include "engine/format.h"
#include "engine/tensor_impl.h"
#include "engine/workspace.h"
#include "ops/check.h"
#include "ops/cpu/gemm_bf16.h"
#include "ops/gemm_provider.h"
#include "ops/kernels/matmul.h"
#include "ops/rounded_weights.h"

namespace polygrad {
namespace {

thread_local Precision precision_now = Precision::f32;
thread_local detail::RoundedWeights* weights_now = nullptr;  // the outermost 16-bit guard's

}  // namespace

const char* to_string(Precision precision) {
  switch (precision) {
    case Precision::f32:
      return "f32";
    case Precision::bf16:
      return "bf16";
    case Precision::f16:
      return "f16";
  }
  return "?";
}

Precision precision_named(const std::string& name) {
  for (const Precision precision : {Precision::f32, Precision::bf16, Precision::f16}) {
    if (name == to_string(precision)) return precision;
  }
  throw ValueError(format("[precision] \"{}\" is no precision; expected f32, bf16 or f16", name));
}

std::string precision_obstacle(Precision precision, Device device) {
  if (precision == Precision::f32 || device.type == DeviceType::cuda) return "";
  if (precision == Precision::f16) return "f16 products are not available on the CPU; use bf16 or f32";
  if (!has_gemm_provider(GemmProvider::onednn)) {
    return "bf16 products on the CPU are oneDNN's, which this build does not have; configure with "
           "-DPOLYGRAD_ONEDNN=ON, or use f32";
  }
  if (gemm_provider() != GemmProvider::onednn) {
    return format(
        "bf16 products on the CPU are oneDNN's, and the gemm provider is {}; choose onednn (POLYGRAD_GEMM, "
        "set_gemm_provider), or use f32",
        to_string(gemm_provider()));
  }
  if (!cpu::has_bf16_units()) {
    return "this CPU has no bf16 units (avx512_bf16 or amx_bf16), or oneDNN was told not to use them; use f32";
  }
  return "";
}

PrecisionGuard::PrecisionGuard(Precision precision, Device device) : previous_(precision_now) {
  if (const std::string obstacle = precision_obstacle(precision, device); !obstacle.empty()) {
    throw NotImplementedError("[PrecisionGuard] " + obstacle);
  }
  precision_now = precision;
  if (precision != Precision::f32 && weights_now == nullptr) {
    weights_ = std::make_unique<detail::RoundedWeights>();
    weights_now = weights_.get();
  }
}

PrecisionGuard::~PrecisionGuard() {
  precision_now = previous_;
  if (weights_) weights_now = nullptr;
}

Precision current_precision() { return precision_now; }

// --- for the fronts ------------------------------------------------------------------------------------------------

DType product_dtype() {
  return precision_now == Precision::bf16 ? DType::bf16 : precision_now == Precision::f16 ? DType::f16 : DType::f32;
}

bool computes_narrow(const Tensor& x) {
  return precision_now != Precision::f32 && x.defined() && (x.dtype() == DType::f32 || x.dtype() == product_dtype());
}

void check_parameter_dtype(const char* op, const Tensor& x, const Tensor& parameter, const char* name) {
  if (!computes_narrow(x)) return check_same_dtype(op, x, parameter, name);
  check_defined(op, parameter, name);
  if (parameter.dtype() == DType::f32) return;
  throw DTypeError(
      format("[{}] wrong dtype: {} is {}, x {}; under a PrecisionGuard expected f32, which a product rounds "
             "itself",
             op, name, describe(parameter), describe(x)));
}

Tensor rounded(const Tensor& x) { return x.detach().to(product_dtype()); }

TensorOptions rounded_options(const Tensor& x) { return {.dtype = product_dtype(), .device = x.device()}; }

namespace {

Tensor pack(const char* op, const Tensor& weight, DType dtype, bool transposed) {
  const auto kernel = matmul_kernels(weight.device().type).pack;
  require_kernel(op, kernel != nullptr, weight.device().type);
  Tensor packed = Tensor::empty({weight.numel()}, {.dtype = dtype, .device = weight.device()});
  if (weight.numel() == 0) return packed;
  const Shape& strides = weight.strides();
  const bool plain = matrix_layout(weight.size(0), weight.size(1), strides[0], strides[1]).valid;
  const Tensor matrix = plain ? weight.detach() : weight.detach().contiguous();
  TensorRef ref = matrix.ref();
  if (transposed) {
    std::swap(ref.sizes[0], ref.sizes[1]);
    std::swap(ref.strides[0], ref.strides[1]);
  }
  Workspace workspace(weight.device());
  kernel(workspace, ref, packed.ref());
  return packed;
}

}  // namespace

Tensor packed_weight(const char* op, const Tensor& weight, DType dtype, bool transposed) {
  return weights_now != nullptr ? weights_now->find(op, weight, dtype, transposed)
                                : pack(op, weight, dtype, transposed);
}

Tensor detail::RoundedWeights::find(const char* op, const Tensor& weight, DType dtype, bool transposed) {
  const std::shared_ptr<std::atomic<std::uint64_t>>& family = weight.impl()->version;
  const auto [first, last] = entries_.equal_range(family.get());
  for (auto it = first; it != last; ++it) {
    Entry& entry = it->second;
    if (entry.transposed != transposed || entry.packed.dtype() != dtype || entry.data != weight.ref().data ||
        entry.shape != weight.shape() || entry.strides != weight.strides()) {
      continue;
    }
    if (entry.version != weight.version()) {
      entry.packed = pack(op, weight, dtype, transposed);
      entry.version = weight.version();
    }
    return entry.packed;
  }
  // Those of weights that are no more, whenever one comes.
  std::erase_if(entries_, [](const auto& item) { return item.second.family.expired(); });
  Entry entry{family,
              weight.version(),
              weight.shape(),
              weight.strides(),
              weight.ref().data,
              transposed,
              pack(op, weight, dtype, transposed)};
  return entries_.emplace(family.get(), std::move(entry))->second.packed;
}

}  // namespace polygrad

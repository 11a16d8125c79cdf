// Lists the kernel tables of the GPU, without a GPU: which entries are there. Exits with 1 where an entry is null that
// is not on the list of what is known to be missing, or where that list names one that is there.
//
// `make cuda-compile` ends with this, so an op that models use can't lose its kernel unnoticed.
#include <cstdio>
#include <cstring>
#include <iterator>

#include "ops/kernels/attention.h"
#include "ops/kernels/binary.h"
#include "ops/kernels/dropout.h"
#include "ops/kernels/index.h"
#include "ops/kernels/loss.h"
#include "ops/kernels/matmul.h"
#include "ops/kernels/norm.h"
#include "ops/kernels/optim_step.h"
#include "ops/kernels/patch.h"
#include "ops/kernels/pre_norm.h"
#include "ops/kernels/reduce.h"
#include "ops/kernels/softmax.h"
#include "ops/kernels/unary.h"

using namespace polygrad;

namespace {

// Families without kernels, and single entries, as "family.entry".
constexpr const char* kMissing[] = {"none"};

int present = 0, missing = 0, wrong = 0;

bool known_missing(const char* family, const char* entry) {
  char both[128];
  std::snprintf(both, sizeof both, "%s.%s", family, entry);
  for (const char* name : kMissing) {
    if (std::strcmp(name, family) == 0 || std::strcmp(name, both) == 0) return true;
  }
  return false;
}

void count(const char* family, const char* entry, bool there) {
  ++(there ? present : missing);
  if (there != known_missing(family, entry)) return;
  std::printf("wrong: %s.%s is %s\n", family, entry, there ? "there, but listed as missing" : "null");
  ++wrong;
}

// A table as an array of pointers, named in order.
template <class Kernels, class... Names>
void list(const char* family, const Kernels& kernels, Names... names) {
  static_assert(sizeof(Kernels) == sizeof...(Names) * sizeof(void (*)()), "an entry has no name here");
  void* entries[sizeof...(Names)];
  std::memcpy(entries, &kernels, sizeof kernels);
  const void* const* entry = entries;
  (count(family, names, *entry++ != nullptr), ...);
}

template <class... F>
void list_unary(const UnaryKernels& kernels, functors::List<F...>) {
  int place = 0;
  for (const char* name : {F::kName...}) {
    count("unary", name, kernels.forward[place] != nullptr && kernels.backward[place] != nullptr);
    ++place;
  }
  count("unary", "pow", kernels.pow != nullptr && kernels.pow_backward != nullptr);
}

template <class F>
void list_binary(const BinaryKernels::Arithmetic& entry) {
  bool there = entry.forward != nullptr;
  for (int i = 0; i < 2; ++i) there = there && (entry.backward[i] != nullptr || !(F::kReads[i][0] || F::kReads[i][1]));
  count("binary", F::kName, there);
}

}  // namespace

int main() {
  list_unary(cuda_unary_kernels(), functors::All{});
  const BinaryKernels& binary = cuda_binary_kernels();
  list_binary<functors::Add>(binary.add);
  list_binary<functors::Sub>(binary.sub);
  list_binary<functors::Mul>(binary.mul);
  list_binary<functors::Div>(binary.div);
  list_binary<functors::Maximum>(binary.maximum);
  list_binary<functors::Minimum>(binary.minimum);
  count("binary", "compare", binary.compare != nullptr);
  list("reduce", cuda_reduce_kernels(), "sum", "amax", "amax_backward", "argmax", "topk");
  list("softmax", cuda_softmax_kernels(), "softmax", "softmax_backward", "log_softmax", "log_softmax_backward");
  list("norm", cuda_norm_kernels(), "layer_norm", "layer_norm_backward");
  list("dropout", cuda_dropout_kernels(), "dropout", "drop_path", "residual_add");
  list("index", cuda_index_kernels(), "first_outside", "gather", "gather_backward", "select_rows",
       "select_rows_backward", "one_hot", "masked_fill");
  list("loss", cuda_loss_kernels(), "cross_entropy", "cross_entropy_backward", "cross_entropy_soft",
       "cross_entropy_soft_backward", "mse", "mse_backward");
  list("optim_step", cuda_optim_step_kernels(), "adamw", "sgd", "sum_squares", "max_abs", "scale", "ema");
  list("patch", cuda_patch_kernels(), "unfold", "fold");
  list("matmul", cuda_matmul_kernels(), "matmul", "linear", "linear_gelu", "linear_gelu_backward", "column_sums",
       "pack", "linear_packed", "linear_gelu_packed");
  list("pre_norm", cuda_pre_norm_kernels(), "linear", "linear_backward", "linear_residual", "linear_residual_backward",
       "mlp", "mlp_backward");
  list("attention", cuda_attention_kernels(), "tiled.forward", "tiled.backward", "linear.forward", "linear.backward",
       "materialised.forward", "materialised.backward", "map", "norms");
  std::printf("kernel tables: %d entries are there, %d are missing, %d are not as listed\n", present, missing, wrong);
  return wrong == 0 ? 0 : 1;
}

#include "ops/cpu/attention_tiled.h"

#include <limits>

#include "engine/parallel.h"

namespace polygrad::cpu::attention {

TiledWork::TiledWork(Workspace& workspace, const AttentionProblem& problem, std::int64_t bias_groups)
    : sizes(problem),
      shape(tile_shape(sizes.queries, sizes.keys, sizes.head_dim)),
      batches(workspace.allocate<BatchPlan>(sizes.batch)) {
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    batches[b] = {};
    batches[b].extent = {trim(query_mask_of(problem, b), {0, sizes.queries}),
                         trim(key_mask_of(problem, b), {0, sizes.keys})};
  }
  plan = plan_tiled(sizes.heads, sizes.queries, bias_groups, batches, sizes.batch);
  tasks = workspace.allocate<TiledTask>(plan.tasks);
  list_tasks(plan, sizes.heads, sizes.queries, batches, sizes.batch, tasks);
}

template <class T>
void clear_hidden(const TiledWork& work, const TensorRef& mask, const TensorRef& x) {
  if (!x.present()) return;
  const std::int64_t heads = x.sizes[1], tokens = x.sizes[2], width = x.sizes[3];
  parallel_for(0, x.sizes[0], 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const bool* visible = mask.present() ? mask.as<const bool>() + b * tokens : nullptr;
      const bool all = !work.has_work(b);
      if (visible == nullptr && !all) continue;
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t i = 0; i < tokens; ++i) {
          if (all || !visible[i]) fill_rows(head_rows<T>(x, b, h), run_of_tokens({i, i + 1}), width, T(0));
        }
      }
    }
  });
}

template <class T>
void hide_padding(std::int64_t rows, std::int64_t cols, std::int64_t stride, T* s) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = cols; j < stride; ++j) s[i * stride + j] = -std::numeric_limits<T>::infinity();
  }
}

#define POLYGRAD_INSTANTIATE(T)                                                        \
  template void clear_hidden<T>(const TiledWork&, const TensorRef&, const TensorRef&); \
  template void hide_padding<T>(std::int64_t, std::int64_t, std::int64_t, T*);
POLYGRAD_INSTANTIATE(float)
POLYGRAD_INSTANTIATE(double)
#undef POLYGRAD_INSTANTIATE

}  // namespace polygrad::cpu::attention

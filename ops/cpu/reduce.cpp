// Reductions on the CPU. A sum is cut into slices whose number depends on the shape alone; each slice has a partial sum
// in f64, and these are added in order.
#include "ops/kernels/reduce.h"

#include <algorithm>

#include "engine/parallel.h"
#include "ops/cpu/floating.h"
#include "ops/cpu/lanes.h"

namespace polygrad {
namespace {

constexpr int kMaxDims = 8;
constexpr std::int64_t kGrain = 16384;         // elements in a task, at least
constexpr std::int64_t kTasks = 32;            // enough for any number of threads that these sizes are worth
constexpr std::int64_t kColumns = 512;         // outputs whose running sums one task keeps, where columns are summed
constexpr std::int64_t kShortRun = 16;         // shorter runs of memory are not worth lanes
constexpr std::int64_t kMinSlice = 16 * 1024;  // elements of one output that are worth a task of their own

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// A list of dimensions, walked in row-major order.
struct Walk {
  int dim = 0;
  std::int64_t sizes[kMaxDims], strides[kMaxDims];
  std::int64_t count = 1;

  void append(std::int64_t size, std::int64_t stride) {
    sizes[dim] = size;
    strides[dim++] = stride;
    count *= size;
  }
  std::int64_t offset(std::int64_t index) const {
    if (dim == 1) return index * strides[0];
    std::int64_t offset = 0;
    for (int i = dim - 1; i >= 0; --i) {
      offset += index % sizes[i] * strides[i];
      index /= sizes[i];
    }
    return offset;
  }
};

// A contiguous tensor as kept and reduced dimensions, neighbours of one kind merged, and an innermost run of memory.
struct Plan {
  Walk kept, reduced;       // without the innermost run
  std::int64_t inner = 1;   // length of the innermost run
  bool inner_kept = false;  // which of the two it belongs to

  Plan(const TensorRef& x, std::uint32_t mask) {
    std::int64_t sizes[kMaxDims];
    bool is_reduced[kMaxDims];
    int dim = 0;
    for (int i = 0; i < x.dim; ++i) {
      if (x.sizes[i] == 1) continue;
      const bool r = (mask >> i) & 1;
      if (dim > 0 && is_reduced[dim - 1] == r) {
        sizes[dim - 1] *= x.sizes[i];
      } else {
        sizes[dim] = x.sizes[i];
        is_reduced[dim++] = r;
      }
    }
    if (dim > 0) {
      inner = sizes[dim - 1];
      inner_kept = !is_reduced[dim - 1];
    }
    std::int64_t stride[kMaxDims] = {};
    for (std::int64_t i = dim - 2, step = inner; i >= 0; step *= sizes[i--]) stride[i] = step;
    for (int i = 0; i < dim - 1; ++i) (is_reduced[i] ? reduced : kept).append(sizes[i], stride[i]);
  }
};

// out[o] = scale·Σ partial[slice][o]
template <class T>
void add_slices(const double* partial, std::int64_t slices, std::int64_t outputs, double scale, T* out) {
  parallel_for(0, outputs, kGrain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t o = begin; o < end; ++o) {
      double total = partial[o];
      for (std::int64_t s = 1; s < slices; ++s) total += partial[s * outputs + o];
      out[o] = static_cast<T>(total * scale);
    }
  });
}

// The innermost run is reduced: each output is a sum of runs. A slice is a range of the elements that one output sums.
template <class T>
void sum_runs(Workspace& workspace, const Plan& plan, const T* x, double scale, T* out) {
  const std::int64_t outputs = plan.kept.count, length = plan.reduced.count * plan.inner;
  const auto sum_range = [&plan, x](std::int64_t output, std::int64_t begin, std::int64_t end) {
    const T* base = x + plan.kept.offset(output);
    double total = 0;
    while (begin < end) {
      const std::int64_t run = begin / plan.inner, at = begin % plan.inner;
      const std::int64_t count = std::min(plan.inner - at, end - begin);
      const T* from = base + plan.reduced.offset(run) + at;
      if (plan.inner < kShortRun) {
        for (std::int64_t i = 0; i < count; ++i) total += static_cast<double>(from[i]);
      } else {
        total += lanes::sum(from, count);
      }
      begin += count;
    }
    return total;
  };
  const std::int64_t slices =
      outputs >= kTasks ? 1 : std::clamp<std::int64_t>(length / kMinSlice, 1, ceil_div(kTasks, outputs));
  if (slices == 1) {
    parallel_for(0, outputs, std::max<std::int64_t>(1, kGrain / length), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t o = begin; o < end; ++o) out[o] = static_cast<T>(sum_range(o, 0, length) * scale);
    });
    return;
  }
  const std::int64_t step = ceil_div(length, slices);
  double* partial = workspace.allocate<double>(slices * outputs);
  parallel_for(0, slices * outputs, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t slice = task / outputs, output = task % outputs;
      partial[task] = sum_range(output, std::min(length, slice * step), std::min(length, (slice + 1) * step));
    }
  });
  add_slices(partial, slices, outputs, scale, out);
}

// The innermost run is kept: runs are added to each other. A slice is a range of the runs.
template <class T>
void sum_columns(Workspace& workspace, const Plan& plan, const T* x, double scale, T* out) {
  const std::int64_t runs = plan.reduced.count, blocks = ceil_div(plan.inner, kColumns);
  const std::int64_t outputs = plan.kept.count * plan.inner, tasks = plan.kept.count * blocks;
  const std::int64_t width = std::min(plan.inner, kColumns);
  const std::int64_t slices =
      tasks >= kTasks ? 1 : std::clamp<std::int64_t>(runs * width / kMinSlice, 1, ceil_div(kTasks, tasks));
  const std::int64_t step = ceil_div(runs, slices);
  double* partial = workspace.allocate<double>(slices * outputs);
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / (step * width));
  parallel_for(0, slices * tasks, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t slice = task / tasks, outer = task % tasks / blocks, block = task % blocks;
      const std::int64_t first = block * kColumns, count = std::min(kColumns, plan.inner - first);
      const T* base = x + plan.kept.offset(outer) + first;
      double running[kColumns];
      std::fill_n(running, count, 0.0);
      for (std::int64_t run = slice * step; run < std::min(runs, (slice + 1) * step); ++run) {
        const T* row = base + plan.reduced.offset(run);
        for (std::int64_t i = 0; i < count; ++i) running[i] += static_cast<double>(row[i]);
      }
      std::copy_n(running, count, partial + slice * outputs + outer * plan.inner + first);
    }
  });
  add_slices(partial, slices, outputs, scale, out);
}

void sum(Workspace& workspace, const TensorRef& x, std::uint32_t reduced, double scale, const TensorRef& out) {
  dispatch_floating(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (out.numel() == 0) return;
    if (x.numel() == 0) {
      std::fill_n(out.as<T>(), out.numel(), T(0));
      return;
    }
    const Plan plan(x, reduced);
    if (plan.inner_kept) {
      sum_columns(workspace, plan, x.as<T>(), scale, out.as<T>());
    } else {
      sum_runs(workspace, plan, x.as<T>(), scale, out.as<T>());
    }
  });
}

// For x: (outer, n, inner), the elements of each of the `outer` slabs.
struct Slabs {
  std::int64_t outer, n, inner;
  explicit Slabs(const TensorRef& x) : outer(x.sizes[0]), n(x.sizes[1]), inner(x.sizes[2]) {}
  std::int64_t size() const { return n * inner; }
  std::int64_t grain() const { return std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, size())); }
};

void amax(Workspace&, const TensorRef& x, const TensorRef& out) {
  dispatch_floating(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Slabs s(x);
    parallel_for(0, s.outer, s.grain(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t o = begin; o < end; ++o) {
        const T* from = x.as<T>() + o * s.size();
        T* best = out.as<T>() + o * s.inner;
        if (s.inner == 1) {
          *best = lanes::max(from, s.n);
          continue;
        }
        std::copy_n(from, s.inner, best);
        for (std::int64_t j = 1; j < s.n; ++j) {
          const T* row = from + j * s.inner;
          for (std::int64_t i = 0; i < s.inner; ++i) {
            best[i] = ((best[i] >= row[i]) | (best[i] != best[i])) ? best[i] : row[i];
          }
        }
      }
    });
  });
}

void amax_backward(Workspace&, const TensorRef& g, const TensorRef& x, const TensorRef& y, const TensorRef& dx) {
  dispatch_floating(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Slabs s(x);
    parallel_for(0, s.outer, s.grain(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t o = begin; o < end; ++o) {
        const T* from = x.as<T>() + o * s.size();
        T* to = dx.as<T>() + o * s.size();
        for (std::int64_t i = 0; i < s.inner; ++i) {
          const T largest = y.as<T>()[o * s.inner + i];
          std::int64_t equals = 0;
          for (std::int64_t j = 0; j < s.n; ++j) equals += from[j * s.inner + i] == largest;
          // Where the largest is NaN nothing equals it, and all that are NaN get NaN.
          const T share = equals > 0 ? g.as<T>()[o * s.inner + i] / static_cast<T>(equals) : largest;
          for (std::int64_t j = 0; j < s.n; ++j) {
            const T value = from[j * s.inner + i];
            to[j * s.inner + i] = ((value == largest) | (value != value)) ? share : T(0);
          }
        }
      }
    });
  });
}

// Whether a comes before b in descending order; a NaN before all numbers.
template <class T>
bool before(T a, T b) {
  return a > b || (a != a && b == b);
}

void argmax(Workspace&, const TensorRef& x, const TensorRef& indices) {
  dispatch_floating(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Slabs s(x);
    parallel_for(0, s.outer, s.grain(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t o = begin; o < end; ++o) {
        const T* from = x.as<T>() + o * s.size();
        for (std::int64_t i = 0; i < s.inner; ++i) {
          std::int64_t best = 0;
          for (std::int64_t j = 1; j < s.n; ++j) {
            if (before(from[j * s.inner + i], from[best * s.inner + i])) best = j;
          }
          indices.as<std::int64_t>()[o * s.inner + i] = best;
        }
      }
    });
  });
}

void topk(Workspace& workspace, const TensorRef& x, const TensorRef& values, const TensorRef& indices) {
  dispatch_floating(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t rows = x.sizes[0], n = x.sizes[1], k = values.sizes[1];
    std::int64_t* orders = workspace.allocate<std::int64_t>(rows * n);
    parallel_for(0, rows, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, n)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t r = begin; r < end; ++r) {
                     const T* row = x.as<T>() + r * n;
                     std::int64_t* order = orders + r * n;
                     for (std::int64_t j = 0; j < n; ++j) order[j] = j;
                     std::partial_sort(order, order + k, order + n, [row](std::int64_t a, std::int64_t b) {
                       return before(row[a], row[b]) || (!before(row[b], row[a]) && a < b);
                     });
                     for (std::int64_t j = 0; j < k; ++j) {
                       values.as<T>()[r * k + j] = row[order[j]];
                       indices.as<std::int64_t>()[r * k + j] = order[j];
                     }
                   }
                 });
  });
}

}  // namespace

constinit const ReduceKernels cpu_reduce_kernels = {sum, amax, amax_backward, argmax, topk};

}  // namespace polygrad

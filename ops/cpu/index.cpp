// The index family on the CPU. Reads move bytes, so they are dispatched on the element's size alone; gradients are sums
// per destination row, each row by one thread and in the order of positions.
#include "ops/kernels/index.h"

#include <algorithm>
#include <cstring>

#include "engine/parallel.h"
#include "ops/cpu/floating.h"

namespace polygrad {
namespace {

constexpr std::int64_t kChunk = 16384;  // elements that a chunk moves, at least

std::int64_t grain_for(std::int64_t elements_each) { return std::max<std::int64_t>(1, kChunk / (elements_each + 1)); }

// Calls f with a value of an unsigned type of the dtype's size.
template <class F>
void dispatch_size(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return f(std::uint64_t{});
    case DType::f32:
    case DType::i32:
      return f(std::uint32_t{});
    case DType::bf16:
    case DType::f16:
      return f(std::uint16_t{});
    case DType::u8:
    case DType::boolean:
      return f(std::uint8_t{});
  }
}

std::int64_t first_outside(Workspace& workspace, const TensorRef& ids, std::int64_t size, const std::int64_t* allowed) {
  const std::int64_t n = ids.numel();
  const std::int64_t chunks = (n + kChunk - 1) / kChunk;
  const auto* id = ids.as<const std::int64_t>();
  auto* found = workspace.allocate<std::int64_t>(chunks);
  parallel_for(0, n, kChunk, [=](std::int64_t begin, std::int64_t end) {
    std::int64_t position = -1;
    for (std::int64_t i = begin; i < end && position < 0; ++i) {
      if ((id[i] < 0 || id[i] >= size) && !(allowed != nullptr && id[i] == *allowed)) position = i;
    }
    found[begin / kChunk] = position;
  });
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    if (found[chunk] >= 0) return found[chunk];
  }
  return -1;
}

void gather(Workspace&, const TensorRef& x, const TensorRef& index, const TensorRef& y) {
  const std::int64_t outer = y.sizes[0], n = y.sizes[1], inner = y.sizes[2], size = x.sizes[1];
  const auto* id = index.as<const std::int64_t>();
  dispatch_size(x.dtype, [&](auto element) {
    using T = decltype(element);
    const T* from = x.as<const T>();
    T* to = y.as<T>();
    parallel_for(0, outer * n, grain_for(inner), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* source = from + row / n * size * inner;
        for (std::int64_t j = 0; j < inner; ++j) to[row * inner + j] = source[id[row * inner + j] * inner + j];
      }
    });
  });
}

void gather_backward(Workspace&, const TensorRef& gy, const TensorRef& index, const TensorRef& gx) {
  const std::int64_t outer = gy.sizes[0], n = gy.sizes[1], inner = gy.sizes[2], size = gx.sizes[1];
  const auto* id = index.as<const std::int64_t>();
  // A task is some columns of one outer index: nobody else adds to these. A frequent id has many addends, so the sums
  // are f64.
  constexpr std::int64_t kColumns = 64;
  const std::int64_t blocks = (inner + kColumns - 1) / kColumns;
  dispatch_floating(gx.dtype, [&](auto element) {
    using T = decltype(element);
    const T* from = gy.as<const T>();
    T* to = gx.as<T>();
    const std::int64_t cost = (n + size) * std::min(inner, kColumns);
    parallel_for(0, outer * blocks, grain_for(cost), [=](std::int64_t begin, std::int64_t end) {
      Workspace workspace;
      auto* sums = workspace.allocate<double>(size * std::min(inner, kColumns));
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t o = task / blocks, first = task % blocks * kColumns;
        const std::int64_t width = std::min(kColumns, inner - first);
        std::fill_n(sums, size * width, 0.0);
        for (std::int64_t i = 0; i < n; ++i) {
          const std::int64_t row = (o * n + i) * inner + first;
          for (std::int64_t j = 0; j < width; ++j) sums[id[row + j] * width + j] += static_cast<double>(from[row + j]);
        }
        for (std::int64_t r = 0; r < size; ++r) {
          T* target = to + (o * size + r) * inner + first;
          for (std::int64_t j = 0; j < width; ++j) target[j] = static_cast<T>(sums[r * width + j]);
        }
      }
    });
  });
}

void select_rows(Workspace&, const TensorRef& x, const TensorRef& ids, const TensorRef& y) {
  const std::int64_t outer = y.sizes[0], n = y.sizes[1], inner = y.sizes[2], size = x.sizes[1];
  const auto* id = ids.as<const std::int64_t>();
  dispatch_size(x.dtype, [&](auto element) {
    using T = decltype(element);
    const T* from = x.as<const T>();
    T* to = y.as<T>();
    parallel_for(0, outer * n, grain_for(inner), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t source = row / n * size + id[row % n];
        std::copy_n(from + source * inner, inner, to + row * inner);
      }
    });
  });
}

// Positions sorted by id, equal ids in order: positions[starts[r]] ... positions[starts[r + 1] - 1] have id r.
struct Positions {
  const std::int64_t* starts;
  const std::int64_t* positions;
};

Positions sort_positions(Workspace& workspace, const std::int64_t* ids, std::int64_t n, std::int64_t size) {
  // Counted one place further on, so that filling the positions moves each start to where it belongs.
  auto* starts = workspace.allocate<std::int64_t>(size + 2);
  auto* positions = workspace.allocate<std::int64_t>(n);
  std::fill_n(starts, size + 2, std::int64_t{0});
  for (std::int64_t i = 0; i < n; ++i) ++starts[ids[i] + 2];
  for (std::int64_t r = 2; r < size + 2; ++r) starts[r] += starts[r - 1];
  for (std::int64_t i = 0; i < n; ++i) positions[starts[ids[i] + 1]++] = i;
  return {starts, positions};
}

void select_rows_backward(Workspace& workspace, const TensorRef& gy, const TensorRef& ids, std::int64_t skipped,
                          const TensorRef& gx) {
  const std::int64_t outer = gy.sizes[0], n = gy.sizes[1], inner = gy.sizes[2], size = gx.sizes[1];
  const Positions sorted = sort_positions(workspace, ids.as<const std::int64_t>(), n, size);
  constexpr std::int64_t kColumns = 64;
  dispatch_floating(gx.dtype, [&](auto element) {
    using T = decltype(element);
    const T* from = gy.as<const T>();
    T* to = gx.as<T>();
    const std::int64_t cost = inner * (1 + n / std::max<std::int64_t>(size, 1));
    parallel_for(0, outer * size, grain_for(cost), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t o = row / size, r = row % size;
        const std::int64_t stop = r == skipped ? sorted.starts[r] : sorted.starts[r + 1];
        for (std::int64_t first = 0; first < inner; first += kColumns) {
          const std::int64_t width = std::min(kColumns, inner - first);
          double sums[kColumns] = {};  // a frequent id has many addends
          for (std::int64_t k = sorted.starts[r]; k < stop; ++k) {
            const T* source = from + (o * n + sorted.positions[k]) * inner + first;
            for (std::int64_t j = 0; j < width; ++j) sums[j] += static_cast<double>(source[j]);
          }
          T* target = to + row * inner + first;
          for (std::int64_t j = 0; j < width; ++j) target[j] = static_cast<T>(sums[j]);
        }
      }
    });
  });
}

// The bits of 1 in each dtype.
std::uint64_t one_bits(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 0x3F800000u;
    case DType::f64:
      return 0x3FF0000000000000u;
    case DType::bf16:
      return 0x3F80u;
    case DType::f16:
      return 0x3C00u;
    case DType::i64:
    case DType::i32:
    case DType::u8:
    case DType::boolean:
      return 1;
  }
  return 1;
}

void one_hot(Workspace&, const TensorRef& ids, const TensorRef& y) {
  const std::int64_t n = y.sizes[0], classes = y.sizes[1];
  const auto* id = ids.as<const std::int64_t>();
  dispatch_size(y.dtype, [&](auto element) {
    using T = decltype(element);
    T* to = y.as<T>();
    const T one = static_cast<T>(one_bits(y.dtype));
    parallel_for(0, n, grain_for(classes), [=](std::int64_t begin, std::int64_t end) {
      std::fill_n(to + begin * classes, (end - begin) * classes, T(0));
      for (std::int64_t i = begin; i < end; ++i) to[i * classes + id[i]] = one;
    });
  });
}

void masked_fill(Workspace&, const TensorRef& x, const TensorRef& mask, const void* value, const TensorRef& y) {
  const auto* masked = mask.as<const bool>();
  dispatch_size(x.dtype, [&](auto element) {
    using T = decltype(element);
    const T* from = x.as<const T>();
    T* to = y.as<T>();
    T fill;
    std::memcpy(&fill, value, sizeof(T));
    parallel_for(0, x.numel(), kChunk, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) to[i] = masked[i] ? fill : from[i];
    });
  });
}

}  // namespace

constinit const IndexKernels cpu_index_kernels = {
    .first_outside = first_outside,
    .gather = gather,
    .gather_backward = gather_backward,
    .select_rows = select_rows,
    .select_rows_backward = select_rows_backward,
    .one_hot = one_hot,
    .masked_fill = masked_fill,
};

}  // namespace polygrad

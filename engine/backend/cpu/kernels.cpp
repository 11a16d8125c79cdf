// The engine's CPU kernels. Memory-bound loops in plain C++: contiguous runs first, strides where they must be.
#include "engine/backend/kernels.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "engine/backend/dispatch.h"
#include "engine/bfloat16.h"
#include "engine/math.h"
#include "engine/parallel.h"
#include "engine/philox.h"

namespace polygrad {

namespace {

constexpr std::int64_t kGrain = 1 << 15;  // elements a chunk

// --- walking one or two tensors row by row --------------------------------------------------------------------------

// The dimensions of a walk over `operands` tensors of one shape: size-1 dimensions dropped, neighbours merged where
// every operand steps through them as through one. The last is the row.
struct Walk {
  std::int32_t dim = 0;
  std::int64_t sizes[8];
  std::int64_t strides[2][8];
  std::int64_t rows = 1, row = 1;  // rows * row = numel
};

Walk make_walk(const TensorRef& a, const TensorRef& b) {
  Walk walk;
  for (std::int32_t i = 0; i < a.dim; ++i) {
    if (a.sizes[i] == 1) continue;
    const std::int32_t last = walk.dim - 1;
    if (last >= 0 && walk.strides[0][last] == a.sizes[i] * a.strides[i] &&
        walk.strides[1][last] == a.sizes[i] * b.strides[i]) {
      walk.sizes[last] *= a.sizes[i];
    } else {
      walk.sizes[walk.dim++] = a.sizes[i];
    }
    walk.strides[0][walk.dim - 1] = a.strides[i];
    walk.strides[1][walk.dim - 1] = b.strides[i];
  }
  if (walk.dim == 0) {
    walk.dim = 1;
    walk.sizes[0] = 1;
    walk.strides[0][0] = walk.strides[1][0] = 1;
  }
  for (std::int32_t i = 0; i + 1 < walk.dim; ++i) walk.rows *= walk.sizes[i];
  walk.row = walk.sizes[walk.dim - 1];
  return walk;
}

// Calls f(offset_a, offset_b, count) for pieces of rows, in parallel over rows, or over pieces of a single row.
template <class F>
void for_each_piece(const Walk& walk, const F& f) {
  if (walk.rows == 0 || walk.row == 0) return;
  if (walk.rows == 1) {
    parallel_for(0, walk.row, kGrain, [&](std::int64_t begin, std::int64_t end) {
      f(begin * walk.strides[0][walk.dim - 1], begin * walk.strides[1][walk.dim - 1], end - begin);
    });
    return;
  }
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / walk.row);
  parallel_for(0, walk.rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      std::int64_t rest = r, a = 0, b = 0;
      for (std::int32_t i = walk.dim - 2; i >= 0; --i) {
        const std::int64_t index = rest % walk.sizes[i];
        rest /= walk.sizes[i];
        a += index * walk.strides[0][i];
        b += index * walk.strides[1][i];
      }
      f(a, b, walk.row);
    }
  });
}

// --- conversions ----------------------------------------------------------------------------------------------------

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<From, BFloat16>) {
    return convert<To>(widen(value));
  } else if constexpr (std::is_same_v<From, Float16>) {
    return convert<To>(to_float(value));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return round_to_bfloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, Float16>) {
    return to_float16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    // Out of range and NaN are undefined in C++: clamp, and NaN is 0.
    if (std::isnan(value)) return To{0};
    const double low = static_cast<double>(std::numeric_limits<To>::min());
    const double high = static_cast<double>(std::numeric_limits<To>::max());
    const double v = static_cast<double>(value);
    return v <= low ? std::numeric_limits<To>::min() : v >= high ? std::numeric_limits<To>::max() : static_cast<To>(v);
  } else {
    return static_cast<To>(value);
  }
}

// --- the six --------------------------------------------------------------------------------------------------------

void fill(const TensorRef& out, double value) {
  const Walk walk = make_walk(out, out);
  dispatch(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T element = convert<T>(value);
    const std::int64_t stride = walk.strides[0][walk.dim - 1];
    for_each_piece(walk, [&](std::int64_t offset, std::int64_t, std::int64_t count) {
      T* p = out.as<T>() + offset;
      if (stride == 1) {
        std::fill(p, p + count, element);
      } else {
        for (std::int64_t i = 0; i < count; ++i) p[i * stride] = element;
      }
    });
  });
}

void copy(const TensorRef& from, const TensorRef& to) {
  const Walk walk = make_walk(from, to);
  const std::int64_t from_stride = walk.strides[0][walk.dim - 1], to_stride = walk.strides[1][walk.dim - 1];
  dispatch(from.dtype, [&](auto from_tag) {
    using From = decltype(from_tag);
    dispatch(to.dtype, [&](auto to_tag) {
      using To = decltype(to_tag);
      for_each_piece(walk, [&](std::int64_t from_offset, std::int64_t to_offset, std::int64_t count) {
        const From* source = from.as<From>() + from_offset;
        To* target = to.as<To>() + to_offset;
        if constexpr (std::is_same_v<From, To>) {
          if (from_stride == 1 && to_stride == 1) {
            std::memcpy(target, source, static_cast<std::size_t>(count) * sizeof(To));
            return;
          }
          for (std::int64_t i = 0; i < count; ++i) target[i * to_stride] = source[i * from_stride];
        } else {
          if (from_stride == 1 && to_stride == 1) {
            for (std::int64_t i = 0; i < count; ++i) target[i] = convert<To>(source[i]);
            return;
          }
          for (std::int64_t i = 0; i < count; ++i) target[i * to_stride] = convert<To>(source[i * from_stride]);
        }
      });
    });
  });
}

template <class T>
void accumulate_as(const TensorRef& from, const TensorRef& into) {
  const Walk walk = make_walk(from, into);
  const std::int64_t from_stride = walk.strides[0][walk.dim - 1], into_stride = walk.strides[1][walk.dim - 1];
  for_each_piece(walk, [&](std::int64_t from_offset, std::int64_t into_offset, std::int64_t count) {
    const T* source = from.as<T>() + from_offset;
    T* target = into.as<T>() + into_offset;
    if (from_stride == 1 && into_stride == 1) {
      for (std::int64_t i = 0; i < count; ++i) target[i] += source[i];
    } else {
      for (std::int64_t i = 0; i < count; ++i) target[i * into_stride] += source[i * from_stride];
    }
  });
}

void accumulate(const TensorRef& from, const TensorRef& into) {
  switch (into.dtype) {
    case DType::f32:
      return accumulate_as<float>(from, into);
    case DType::f64:
      return accumulate_as<double>(from, into);
    default:
      break;
  }
  dispatch(into.dtype, [&](auto tag) {  // 16-bit storage: through f32
    using T = decltype(tag);
    if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
      const Walk walk = make_walk(from, into);
      for_each_piece(walk, [&](std::int64_t from_offset, std::int64_t into_offset, std::int64_t count) {
        const T* source = from.as<T>() + from_offset;
        T* target = into.as<T>() + into_offset;
        for (std::int64_t i = 0; i < count; ++i) {
          T& element = target[i * walk.strides[1][walk.dim - 1]];
          element = convert<T>(convert<float>(element) + convert<float>(source[i * walk.strides[0][walk.dim - 1]]));
        }
      });
    }
  });
}

bool is_finite(const TensorRef& tensor) {
  if (!is_floating(tensor.dtype)) return true;
  std::atomic<bool> finite{true};
  const Walk walk = make_walk(tensor, tensor);
  const std::int64_t stride = walk.strides[0][walk.dim - 1];
  dispatch(tensor.dtype, [&](auto tag) {
    using T = decltype(tag);
    if constexpr (!std::is_integral_v<T>) {
      for_each_piece(walk, [&](std::int64_t offset, std::int64_t, std::int64_t count) {
        const T* p = tensor.as<T>() + offset;
        // x * 0 is 0 for a finite x, NaN else; the sum keeps a NaN. No branch, so that it vectorises.
        using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
        Sum sum = 0;
        for (std::int64_t i = 0; i < count; ++i) sum += convert<Sum>(p[i * stride]) * Sum{0};
        if (!(sum == 0)) finite.store(false, std::memory_order_relaxed);
      });
    }
  });
  return finite.load();
}

// Four numbers a Philox block: `draw(words, four)`.
template <class T, class Draw>
void random_fill(const TensorRef& out, const RandomStream& stream, const Draw& draw) {
  const std::int64_t count = out.numel(), blocks = (count + 3) / 4;
  T* data = out.as<T>();
  parallel_for(0, blocks, kGrain / 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const std::uint64_t index = static_cast<std::uint64_t>(block);
      const philox::Words words = philox::draw(
          stream.seed, philox::Domain::fill, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
          static_cast<std::uint32_t>(stream.offset), static_cast<std::uint32_t>(stream.offset >> 32));
      float four[4];
      draw(words, four);
      const std::int64_t first = block * 4, n = std::min<std::int64_t>(4, count - first);
      for (std::int64_t i = 0; i < n; ++i) data[first + i] = static_cast<T>(four[i]);
    }
  });
}

template <class Draw>
void random_fill(const TensorRef& out, const RandomStream& stream, const Draw& draw) {
  if (out.dtype == DType::f64) {
    random_fill<double>(out, stream, draw);
  } else {
    random_fill<float>(out, stream, draw);
  }
}

void random_uniform(const TensorRef& out, const RandomStream& stream) {
  random_fill(out, stream, [](const philox::Words& words, float* four) {
    for (int i = 0; i < 4; ++i) four[i] = philox::uniform(words.w[i]);
  });
}

void random_normal(const TensorRef& out, const RandomStream& stream) {
  random_fill(out, stream, [](const philox::Words& words, float* four) {
    math::normal_pair(words.w[0], words.w[1], &four[0], &four[1]);
    math::normal_pair(words.w[2], words.w[3], &four[2], &four[3]);
  });
}

}  // namespace

const EngineKernels cpu_engine_kernels = {
    .fill = fill,
    .copy = copy,
    .accumulate = accumulate,
    .is_finite = is_finite,
    .random_uniform = random_uniform,
    .random_normal = random_normal,
};

}  // namespace polygrad

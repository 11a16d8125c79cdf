#include "ops/cpu/attention_tokens.h"

#include "ops/cpu/attention_product.h"

namespace polygrad::cpu::attention {

Range trim(const bool* mask, Range range) {
  if (mask == nullptr) return range;
  while (range.begin < range.end && !mask[range.begin]) ++range.begin;
  while (range.begin < range.end && !mask[range.end - 1]) --range.end;
  return range;
}

Tokens visible_tokens(const bool* mask, Range range, std::int32_t* list) {
  range = trim(mask, range);
  std::int64_t count = 0;
  for (std::int64_t i = range.begin; mask != nullptr && i < range.end; ++i) {
    list[count] = static_cast<std::int32_t>(i);
    count += mask[i];
  }
  if (mask == nullptr || count == range.count()) return run_of_tokens(range);
  return {count, 0, list};
}

template <class T>
void gather_rows(const Rows<const T>& rows, const Tokens& tokens, std::int64_t width, T factor, T* to) {
  const std::int64_t stride = padded<T>(width);
  for (std::int64_t i = 0; i < tokens.count; ++i) {
    const T* __restrict from = rows.at(tokens.at(i));
    T* __restrict row = to + i * stride;
    for (std::int64_t e = 0; e < width; ++e) row[e] = factor * from[e];
    for (std::int64_t e = width; e < stride; ++e) row[e] = 0;
  }
  for (std::int64_t e = tokens.count * stride; e < padded<T>(tokens.count) * stride; ++e) to[e] = 0;
}

template <class T>
void scatter_rows(const T* from, const Tokens& tokens, std::int64_t width, T factor, const Rows<T>& rows) {
  const std::int64_t stride = padded<T>(width);
  for (std::int64_t i = 0; i < tokens.count; ++i) {
    const T* __restrict row = from + i * stride;
    T* __restrict to = rows.at(tokens.at(i));
    for (std::int64_t e = 0; e < width; ++e) to[e] = factor * row[e];
  }
}

template <class T>
void fill_rows(const Rows<T>& rows, const Tokens& tokens, std::int64_t width, T value) {
  for (std::int64_t i = 0; i < tokens.count; ++i) {
    T* to = rows.at(tokens.at(i));
    for (std::int64_t e = 0; e < width; ++e) to[e] = value;
  }
}

#define POLYGRAD_INSTANTIATE(T)                                                            \
  template void gather_rows<T>(const Rows<const T>&, const Tokens&, std::int64_t, T, T*);  \
  template void scatter_rows<T>(const T*, const Tokens&, std::int64_t, T, const Rows<T>&); \
  template void fill_rows<T>(const Rows<T>&, const Tokens&, std::int64_t, T);
POLYGRAD_INSTANTIATE(float)
POLYGRAD_INSTANTIATE(double)
#undef POLYGRAD_INSTANTIATE

}  // namespace polygrad::cpu::attention

// The oneDNN provider of bf16 products: matmul primitives, kept by each thread.
#include "ops/cpu/gemm_bf16.h"

#include <algorithm>
#include <cstring>

#include "engine/bfloat16.h"
#include "engine/profile_hooks.h"
#include "ops/cpu/gemm.h"

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace polygrad::cpu {

void round_row(const float* from, BFloat16* to, std::int64_t n) {
  std::int64_t i = 0;
#ifdef __AVX512BF16__
  for (; i + 16 <= n; i += 16) {
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(from + i));
    std::memcpy(to + i, &rounded, sizeof rounded);
  }
#endif
  for (; i < n; ++i) to[i] = round_to_bfloat16(from[i]);
}

}  // namespace polygrad::cpu

#ifdef POLYGRAD_HAVE_ONEDNN

#include <dnnl.h>

#include "ops/cpu/onednn.h"

namespace polygrad::cpu {
namespace {

// --- what a primitive is made for -----------------------------------------------------------------------------------

enum Kind : std::uint32_t { kProduct, kReorder };

// All that a primitive depends on. Compared as bytes, so every field has 8 of them and there are no gaps.
struct Key {
  std::int64_t m, n, k;
  std::int64_t lda, ldb, ldc;
  std::int64_t kind, trans_a, trans_b, packed_b, narrow_c, bias;
  double alpha, beta;
};

bool operator==(const Key& a, const Key& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

std::uint64_t hash(const Key& key) {
  std::uint64_t words[sizeof(Key) / 8], h = 0;
  std::memcpy(words, &key, sizeof key);
  for (const std::uint64_t word : words) h = (h ^ word) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
  return h;
}

// --- a primitive and the memory objects it is called with -----------------------------------------------------------

struct Primitive {
  Key key;
  std::uint64_t used;  // 0: free
  dnnl_primitive_t primitive;
  dnnl_memory_t a, b, c, bias, scratch;
  std::size_t scratch_bytes;

  void destroy() {
    if (primitive != nullptr) dnnl_primitive_destroy(primitive);
    for (const dnnl_memory_t memory : {a, b, c, bias, scratch}) {
      if (memory != nullptr) dnnl_memory_destroy(memory);
    }
    *this = {};
  }
};

// One engine for the process: oneDNN's own cache of compiled code may outlive any of ours. It is never destroyed.
dnnl_engine_t engine() {
  static const dnnl_engine_t the_engine = [] {
    dnnl_engine_t made = nullptr;
    dnnl_engine_create(&made, dnnl_cpu, 0);
    return made;
  }();
  return the_engine;
}

#define POLYGRAD_TRY(call) \
  if (const dnnl_status_t result_ = (call); result_ != dnnl_success) return result_

dnnl_status_t describe(dnnl_memory_desc_t* md, std::int64_t rows, std::int64_t cols, dnnl_data_type_t type,
                       std::int64_t row_stride, std::int64_t col_stride) {
  const dnnl_dims_t dims = {rows, cols}, strides = {row_stride, col_stride};
  return dnnl_memory_desc_init_by_strides(md, 2, dims, type, strides);
}

dnnl_status_t describe_b(dnnl_memory_desc_t* md, const Key& key) {
  return describe(md, key.k, key.n, dnnl_bf16, key.trans_b ? 1 : key.ldb, key.trans_b ? key.ldb : 1);
}

// Objects of oneDNN that live while a primitive is made.
struct Parts {
  dnnl_primitive_attr_t attributes = nullptr;
  dnnl_post_ops_t post_ops = nullptr;
  dnnl_primitive_desc_t description = nullptr;
  ~Parts() {
    if (description != nullptr) dnnl_primitive_desc_destroy(description);
    if (post_ops != nullptr) dnnl_post_ops_destroy(post_ops);
    if (attributes != nullptr) dnnl_primitive_attr_destroy(attributes);
  }
};

// What oneDNN would have B (k, n) look like for a product with many rows. Where its blocks would be filled up with
// zeros, plain rows instead: then a packed matrix always has k·n elements, and nobody needs to write zeros.
dnnl_status_t describe_packed(dnnl_memory_desc_t* md, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kRows = 256;
  Parts parts;
  dnnl_memory_desc_t a, c;
  const dnnl_dims_t dims = {k, n};
  POLYGRAD_TRY(describe(&a, kRows, k, dnnl_bf16, k, 1));
  POLYGRAD_TRY(describe(&c, kRows, n, dnnl_bf16, n, 1));
  POLYGRAD_TRY(dnnl_memory_desc_init_by_tag(md, 2, dims, dnnl_bf16, dnnl_format_tag_any));
  dnnl_matmul_desc_t product;
  POLYGRAD_TRY(dnnl_matmul_desc_init(&product, &a, md, nullptr, &c));
  POLYGRAD_TRY(dnnl_primitive_desc_create(&parts.description, &product, nullptr, engine(), nullptr));
  const dnnl_memory_desc_t* chosen = dnnl_primitive_desc_query_md(parts.description, dnnl_query_weights_md, 0);
  if (chosen == nullptr) return dnnl_runtime_error;
  if (dnnl_memory_desc_get_size(chosen) != static_cast<std::size_t>(k * n) * sizeof(BFloat16)) {
    return describe(md, k, n, dnnl_bf16, n, 1);
  }
  *md = *chosen;
  return dnnl_success;
}

dnnl_status_t make_memory(dnnl_memory_t* memory, const dnnl_memory_desc_t* md) {
  return dnnl_memory_create(memory, md, engine(), DNNL_MEMORY_NONE);
}

dnnl_status_t make_reorder(Primitive& made, const Key& key) {
  Parts parts;
  dnnl_memory_desc_t from, to;
  POLYGRAD_TRY(describe_b(&from, key));
  POLYGRAD_TRY(describe_packed(&to, key.n, key.k));
  POLYGRAD_TRY(dnnl_primitive_attr_create(&parts.attributes));
  POLYGRAD_TRY(dnnl_primitive_attr_set_scratchpad_mode(parts.attributes, dnnl_scratchpad_mode_user));
  POLYGRAD_TRY(
      dnnl_reorder_primitive_desc_create(&parts.description, &from, engine(), &to, engine(), parts.attributes));
  POLYGRAD_TRY(dnnl_primitive_create(&made.primitive, parts.description));
  const dnnl_memory_desc_t* scratch = dnnl_primitive_desc_query_md(parts.description, dnnl_query_scratchpad_md, 0);
  made.scratch_bytes = dnnl_memory_desc_get_size(scratch);
  POLYGRAD_TRY(make_memory(&made.b, &from));
  POLYGRAD_TRY(make_memory(&made.c, &to));
  return make_memory(&made.scratch, scratch);
}

dnnl_status_t make_product(Primitive& made, const Key& key) {
  Parts parts;
  dnnl_memory_desc_t a, b, c, bias;
  POLYGRAD_TRY(describe(&a, key.m, key.k, dnnl_bf16, key.trans_a ? 1 : key.lda, key.trans_a ? key.lda : 1));
  if (key.packed_b) {
    POLYGRAD_TRY(describe_packed(&b, key.n, key.k));
  } else {
    POLYGRAD_TRY(describe_b(&b, key));
  }
  POLYGRAD_TRY(describe(&c, key.m, key.n, key.narrow_c ? dnnl_bf16 : dnnl_f32, key.ldc, 1));
  if (key.bias) POLYGRAD_TRY(describe(&bias, 1, key.n, dnnl_f32, key.n, 1));

  POLYGRAD_TRY(dnnl_primitive_attr_create(&parts.attributes));
  POLYGRAD_TRY(dnnl_primitive_attr_set_scratchpad_mode(parts.attributes, dnnl_scratchpad_mode_user));
  if (key.alpha != 1) {
    const float scale = static_cast<float>(key.alpha);
    POLYGRAD_TRY(dnnl_primitive_attr_set_output_scales(parts.attributes, 1, 0, &scale));
  }
  if (key.beta != 0) {
    POLYGRAD_TRY(dnnl_post_ops_create(&parts.post_ops));
    POLYGRAD_TRY(dnnl_post_ops_append_sum(parts.post_ops, static_cast<float>(key.beta)));
    POLYGRAD_TRY(dnnl_primitive_attr_set_post_ops(parts.attributes, parts.post_ops));
  }
  dnnl_matmul_desc_t product;
  POLYGRAD_TRY(dnnl_matmul_desc_init(&product, &a, &b, key.bias ? &bias : nullptr, &c));
  POLYGRAD_TRY(dnnl_primitive_desc_create(&parts.description, &product, parts.attributes, engine(), nullptr));
  POLYGRAD_TRY(dnnl_primitive_create(&made.primitive, parts.description));
  const dnnl_memory_desc_t* scratch = dnnl_primitive_desc_query_md(parts.description, dnnl_query_scratchpad_md, 0);
  made.scratch_bytes = dnnl_memory_desc_get_size(scratch);
  POLYGRAD_TRY(make_memory(&made.a, &a));
  POLYGRAD_TRY(make_memory(&made.b, &b));
  POLYGRAD_TRY(make_memory(&made.c, &c));
  if (key.bias) POLYGRAD_TRY(make_memory(&made.bias, &bias));
  return make_memory(&made.scratch, scratch);
}

// --- the primitives of a thread -------------------------------------------------------------------------------------

constexpr std::int64_t kPrimitives = 256, kWays = 4;  // a shape has kWays places; the one unused for longest goes

struct Primitives {
  Primitive entries[kPrimitives] = {};
  std::uint64_t clock = 0;
  dnnl_stream_t stream = nullptr;

  Primitives() { dnnl_stream_create(&stream, engine(), dnnl_stream_default_flags); }
  ~Primitives() {
    for (Primitive& entry : entries) entry.destroy();
    if (stream != nullptr) dnnl_stream_destroy(stream);
  }

  // The primitive for `key`, made where there is none yet.
  Primitive* find(const Key& key, dnnl_status_t* status) {
    Primitive* const first = entries + hash(key) % (kPrimitives / kWays) * kWays;
    Primitive* place = first;
    for (Primitive* entry = first; entry < first + kWays; ++entry) {
      if (entry->used != 0 && entry->key == key) {
        entry->used = ++clock;
        return entry;
      }
      if (entry->used < place->used) place = entry;
    }
    place->destroy();
    *status = key.kind == kProduct ? make_product(*place, key) : make_reorder(*place, key);
    if (*status != dnnl_success) {
      place->destroy();
      return nullptr;
    }
    place->key = key;
    place->used = ++clock;
    return place;
  }
};

// Made at a thread's first product, gone with the thread.
struct OwnPrimitives {
  Primitives* primitives = nullptr;
  ~OwnPrimitives() { delete primitives; }
};
thread_local OwnPrimitives own;

// oneDNN takes all pointers as non-const; it writes the result and the scratch memory only.
void* writable(const void* pointer) { return const_cast<void*>(pointer); }

dnnl_status_t execute(const Key& key, const void* a, const void* b, void* c, const float* bias) {
  OneOpenMpThread guard;
  if (own.primitives == nullptr) own.primitives = new Primitives;
  dnnl_status_t status = dnnl_success;
  Primitive* const found = own.primitives->find(key, &status);
  if (found == nullptr) return status;
  const dnnl_stream_t stream = own.primitives->stream;

  Workspace workspace;
  void* const scratch = found->scratch_bytes > 0 ? workspace.allocate(found->scratch_bytes) : nullptr;
  dnnl_exec_arg_t arguments[5];
  int count = 0;
  const auto pass = [&](int name, dnnl_memory_t memory, void* pointer) {
    if (memory == nullptr || status != dnnl_success) return;
    status = dnnl_memory_set_data_handle_v2(memory, pointer, stream);
    arguments[count++] = {name, memory};
  };
  if (key.kind == kReorder) {
    pass(DNNL_ARG_FROM, found->b, writable(b));
    pass(DNNL_ARG_TO, found->c, c);
  } else {
    pass(DNNL_ARG_SRC, found->a, writable(a));
    pass(DNNL_ARG_WEIGHTS, found->b, writable(b));
    pass(DNNL_ARG_DST, found->c, c);
    pass(DNNL_ARG_BIAS, found->bias, writable(bias));
  }
  pass(DNNL_ARG_SCRATCHPAD, found->scratch, scratch);
  if (status != dnnl_success) return status;
  POLYGRAD_TRY(dnnl_primitive_execute(found->primitive, stream, count, arguments));
  return dnnl_stream_wait(stream);
}

#undef POLYGRAD_TRY

// With m, n, k > 0. The leading dimension of a matrix with a single row (as it lies in memory) means nothing; one value
// for all of them saves primitives.
void product(Key key, const BFloat16* a, const BFloat16* b, void* c, const float* bias) {
  key.kind = kProduct;
  key.bias = bias != nullptr;
  if (key.packed_b) key.trans_b = 0, key.ldb = key.n;
  if ((key.trans_a ? key.k : key.m) == 1) key.lda = key.trans_a ? key.m : key.k;
  if ((key.trans_b ? key.n : key.k) == 1) key.ldb = key.trans_b ? key.k : key.n;
  if (key.m == 1) key.ldc = key.n;
  const std::int64_t start = detail::product_begins();
  const dnnl_status_t status = execute(key, a, b, c, bias);
  detail::product_ends(start, key.m * key.n * key.k);
  if (status != dnnl_success) {
    throw_gemm_failure("dnnl_matmul", status == dnnl_out_of_memory, status, key.m, key.n, key.k);
  }
}

// A product with an empty sum.
void bias_alone(std::int64_t m, std::int64_t n, const float* bias, float beta, float* c, std::int64_t ldc) {
  for (std::int64_t i = 0; i < m; ++i) {
    float* row = c + i * ldc;
    for (std::int64_t j = 0; j < n; ++j) {
      row[j] = (bias == nullptr ? 0.0f : bias[j]) + (beta == 0.0f ? 0.0f : beta * row[j]);
    }
  }
}
void bias_alone(std::int64_t m, std::int64_t n, const float* bias, BFloat16* c, std::int64_t ldc) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) c[i * ldc + j] = round_to_bfloat16(bias == nullptr ? 0.0f : bias[j]);
  }
}

}  // namespace

bool has_bf16_units() {
  return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}

void gemm_serial(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                 const BFloat16* a, std::int64_t lda, const BFloat16* b, std::int64_t ldb, float beta, float* c,
                 std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0) return bias_alone(m, n, nullptr, beta, c, ldc);
  product({m, n, k, lda, ldb, ldc, kProduct, trans_a, trans_b, false, false, false, alpha, beta}, a, b, c, nullptr);
}

void gemm_serial(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, const BFloat16* a,
                 std::int64_t lda, const BFloat16* b, std::int64_t ldb, const float* bias, BFloat16* c,
                 std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0) return bias_alone(m, n, bias, c, ldc);
  product({m, n, k, lda, ldb, ldc, kProduct, trans_a, trans_b, false, true, false, 1, 0}, a, b, c, bias);
}

void pack_bf16(bool trans_b, std::int64_t n, std::int64_t k, const float* b, std::int64_t ldb, BFloat16* packed) {
  Workspace workspace;
  BFloat16* rounded = workspace.allocate<BFloat16>(n * k);
  const std::int64_t rows = trans_b ? n : k, cols = trans_b ? k : n;
  for (std::int64_t i = 0; i < rows; ++i) round_row(b + i * ldb, rounded + i * cols, cols);
  const Key key{0, n, k, 0, cols, 0, kReorder, false, trans_b, true, true, false, 1, 0};
  const dnnl_status_t status = execute(key, nullptr, rounded, packed, nullptr);
  if (status != dnnl_success) throw_gemm_failure("dnnl_reorder", status == dnnl_out_of_memory, status, n, k, k);
}

void gemm_packed_serial(std::int64_t m, std::int64_t n, std::int64_t k, const BFloat16* a, std::int64_t lda,
                        const BFloat16* packed, const float* bias, float beta, float* c, std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0) return bias_alone(m, n, bias, beta, c, ldc);
  product({m, n, k, lda, n, ldc, kProduct, false, false, true, false, false, 1, beta}, a, packed, c, bias);
}

void gemm_packed_serial(std::int64_t m, std::int64_t n, std::int64_t k, const BFloat16* a, std::int64_t lda,
                        const BFloat16* packed, const float* bias, BFloat16* c, std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0) return bias_alone(m, n, bias, c, ldc);
  product({m, n, k, lda, n, ldc, kProduct, false, false, true, true, false, 1, 0}, a, packed, c, bias);
}

}  // namespace polygrad::cpu

#else

namespace polygrad::cpu {
namespace {

[[noreturn]] void no_onednn(std::int64_t m, std::int64_t n, std::int64_t k) {
  throw_gemm_failure("oneDNN (not in this build)", false, 0, m, n, k);
}

}  // namespace

bool has_bf16_units() { return false; }
void gemm_serial(bool, bool, std::int64_t m, std::int64_t n, std::int64_t k, float, const BFloat16*, std::int64_t,
                 const BFloat16*, std::int64_t, float, float*, std::int64_t) {
  no_onednn(m, n, k);
}
void gemm_serial(bool, bool, std::int64_t m, std::int64_t n, std::int64_t k, const BFloat16*, std::int64_t,
                 const BFloat16*, std::int64_t, const float*, BFloat16*, std::int64_t) {
  no_onednn(m, n, k);
}
void pack_bf16(bool, std::int64_t n, std::int64_t k, const float*, std::int64_t, BFloat16*) { no_onednn(n, k, k); }
void gemm_packed_serial(std::int64_t m, std::int64_t n, std::int64_t k, const BFloat16*, std::int64_t, const BFloat16*,
                        const float*, float, float*, std::int64_t) {
  no_onednn(m, n, k);
}
void gemm_packed_serial(std::int64_t m, std::int64_t n, std::int64_t k, const BFloat16*, std::int64_t, const BFloat16*,
                        const float*, BFloat16*, std::int64_t) {
  no_onednn(m, n, k);
}

}  // namespace polygrad::cpu

#endif

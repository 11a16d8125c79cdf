#include "tests/ops/attention_support.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "engine/factory.h"

namespace polygrad::testing {

using reference::Array;

Array random_array(const std::vector<std::int64_t>& shape, std::uint64_t seed, double scale) {
  std::mt19937_64 engine(seed);
  const auto uniform = [&] { return (static_cast<double>(engine() >> 11) + 0.5) * 0x1p-53; };
  Array array(shape);
  for (double& value : array.data) {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    value = static_cast<float>(scale * radius * std::cos(6.283185307179586 * uniform()));
  }
  return array;
}

AttentionCase random_case(std::int64_t batch, std::int64_t heads, std::int64_t queries, std::int64_t keys,
                          std::int64_t head_dim, std::uint64_t seed) {
  AttentionCase test;
  test.q = random_array({batch, heads, queries, head_dim}, 4 * seed);
  test.k = random_array({batch, heads, keys, head_dim}, 4 * seed + 1);
  test.v = random_array({batch, heads, keys, head_dim}, 4 * seed + 2);
  test.grad = random_array({batch, queries, heads * head_dim}, 4 * seed + 3);
  return test;
}

Tensor tensor_of(const Array& array, DType dtype) {
  const Shape shape(array.shape);
  if (dtype == DType::boolean) {
    Tensor mask = Tensor::empty(shape, {.dtype = dtype});
    std::transform(array.data.begin(), array.data.end(), mask.data<bool>(), [](double x) { return x != 0; });
    return mask;
  }
  if (dtype == DType::i32) {
    return Tensor::from_vector(std::vector<std::int32_t>(array.data.begin(), array.data.end()), shape);
  }
  return Tensor::from_vector(array.data, shape).to(dtype);
}

Array array_of(const Tensor& tensor) {
  Array array(tensor.shape().vec());
  array.data = tensor.detach().to(DType::f64).to_vector<double>();
  return array;
}

AttentionMasks masks_of(const reference::AttentionSpec& spec, DType dtype) {
  AttentionMasks masks;
  if (!spec.bias.shape.empty()) masks.bias = tensor_of(spec.bias, dtype);
  if (!spec.key_mask.shape.empty()) masks.key_mask = tensor_of(spec.key_mask, DType::boolean);
  if (!spec.query_mask.shape.empty()) masks.query_mask = tensor_of(spec.query_mask, DType::boolean);
  if (!spec.regions.shape.empty()) masks.regions = tensor_of(spec.regions, DType::i32);
  return masks;
}

namespace {

// (B, N, 3, H, d) of three (B, H, N, d), and one of the three back.
Array pack(const Array& q, const Array& k, const Array& v) {
  const std::int64_t batch = q.shape[0], heads = q.shape[1], n = q.shape[2], d = q.shape[3];
  Array packed({batch, n, 3, heads, d});
  const Array* parts[] = {&q, &k, &v};
  std::size_t to = 0;
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t i = 0; i < n; ++i)
      for (const Array* part : parts)
        for (std::int64_t h = 0; h < heads; ++h)
          for (std::int64_t e = 0; e < d; ++e) {
            packed.data[to++] = part->data[static_cast<std::size_t>(((b * heads + h) * n + i) * d + e)];
          }
  return packed;
}

Array unpack(const Array& packed, std::int64_t which) {
  const std::int64_t batch = packed.shape[0], n = packed.shape[1], heads = packed.shape[3], d = packed.shape[4];
  Array part({batch, heads, n, d});
  std::size_t to = 0;
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t e = 0; e < d; ++e) {
          part.data[to++] = packed.data[static_cast<std::size_t>((((b * n + i) * 3 + which) * heads + h) * d + e)];
        }
  return part;
}

}  // namespace

AttentionResult run_attention(const AttentionCase& test, DType dtype, AttentionPath path, Packing packing) {
  const reference::AttentionSpec& spec = test.spec;
  Generator generator(spec.seed, spec.offset, spec.first_sample);
  AttentionParams params;
  params.phi = parse_activation(spec.phi);
  params.divisor = spec.divisor;
  params.score_scale = spec.score_scale;
  params.dropout = spec.dropout;
  params.generator = &generator;
  params.path = path;
  AttentionMasks masks = masks_of(spec, dtype);
  if (masks.bias.defined()) masks.bias.set_requires_grad(true);
  const Tensor grad = tensor_of(test.grad, dtype);
  AttentionResult result;
  if (packing == Packing::packed) {
    Tensor qkv = tensor_of(pack(test.q, test.k, test.v), dtype);
    qkv.set_requires_grad(true);
    const Tensor out = attention_qkv(qkv, params, masks);
    out.backward(grad);
    const Array dqkv = array_of(qkv.grad());
    result = {array_of(out), unpack(dqkv, 0), unpack(dqkv, 1), unpack(dqkv, 2), {}};
  } else {
    Tensor q = tensor_of(test.q, dtype), k = tensor_of(test.k, dtype), v = tensor_of(test.v, dtype);
    for (Tensor* x : {&q, &k, &v}) x->set_requires_grad(true);
    const Tensor out = attention(q, k, v, params, masks);
    out.backward(grad);
    result = {array_of(out), array_of(q.grad()), array_of(k.grad()), array_of(v.grad()), {}};
  }
  if (masks.bias.defined()) result.dbias = array_of(masks.bias.grad());
  return result;
}

AttentionResult run_twin(const AttentionCase& test) {
  const reference::AttentionGradients gradients =
      reference::attention_gradients(test.q, test.k, test.v, test.spec, test.grad);
  return {reference::attention(test.q, test.k, test.v, test.spec), gradients.q, gradients.k, gradients.v,
          gradients.bias};
}

double distance(const Array& a, const Array& b) {
  if (a.data.size() != b.data.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < a.data.size(); ++i) {
    const double here = std::fabs(a.data[i] - b.data[i]);
    if (!(here < std::numeric_limits<double>::infinity())) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, here);
    largest = std::max(largest, std::fabs(b.data[i]));
  }
  return difference == 0 ? 0 : difference / largest;
}

double distance(const AttentionResult& a, const AttentionResult& b) {
  return std::max({distance(a.out, b.out), distance(a.dq, b.dq), distance(a.dk, b.dk), distance(a.dv, b.dv),
                   distance(a.dbias, b.dbias)});
}

Array prefix_mask(const std::vector<std::int64_t>& lengths, std::int64_t n) {
  Array mask({static_cast<std::int64_t>(lengths.size()), n});
  for (std::size_t row = 0; row < lengths.size(); ++row) {
    for (std::int64_t j = 0; j < lengths[row]; ++j)
      mask.data[row * static_cast<std::size_t>(n) + static_cast<std::size_t>(j)] = 1;
  }
  return mask;
}

Array random_mask(std::int64_t rows, std::int64_t n, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  Array mask({rows, n});
  for (std::size_t i = 0; i < mask.data.size(); ++i) {
    mask.data[i] = engine() % 3 != 0 || i % static_cast<std::size_t>(n) == 0 ? 1 : 0;
  }
  return mask;
}

Array corner_window() {
  Array regions({1, 49});
  for (int i = 0; i < 49; ++i) regions.data[static_cast<std::size_t>(i)] = (i / 7 < 4 ? 0 : 2) + (i % 7 < 4 ? 0 : 1);
  return regions;
}

}  // namespace polygrad::testing

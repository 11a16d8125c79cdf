// Indexing: repeated ids, padding, ids outside their range, threads. Values and gradients of every op are checked by
// its rows in tests/op_cases.
#include "ops/index.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/parallel.h"
#include "engine/workspace.h"
#include "ops/binary.h"
#include "ops/cpu/floating.h"
#include "ops/kernels/index.h"
#include "ops/reduce.h"
#include "ops/view.h"

using namespace polygrad;

namespace {

Tensor ids_of(const std::vector<std::int64_t>& ids) { return Tensor::from_vector<std::int64_t>(ids); }

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const std::vector<float> x = a.to_vector<float>(), y = b.to_vector<float>();
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("embedding: repeated ids add up, the padding row gets nothing") {
  for (DType dtype : {DType::f32, DType::f64}) {
    const Tensor weight = ones({6, 2}, {.dtype = dtype, .requires_grad = true});
    sum(embedding(weight, ids_of({3, 3, 3, 0, 5}), 0)).backward();
    const std::vector<double> gradient = weight.grad().to(DType::f64).to_vector<double>();
    CHECK(gradient == std::vector<double>{0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 1, 1});
  }
  const Tensor weight = ones({6, 1}, {.requires_grad = true});
  sum(embedding(weight, ids_of({3, 3, 3, 0, 5}))).backward();
  CHECK(weight.grad().to_vector<float>() == std::vector<float>{1, 0, 0, 3, 0, 1});
}

TEST_CASE("embedding: the padding row is read like any other; no ids give a zero gradient") {
  const Tensor weight = reshape(arange(6), {3, 2}).set_requires_grad(true);
  CHECK(embedding(weight, ids_of({0, 2}), 0).to_vector<float>() == std::vector<float>{0, 1, 4, 5});
  const Tensor none = embedding(weight, Tensor::empty({0}, {.dtype = DType::i64}));
  CHECK(none.shape() == Shape{0, 2});
  sum(none).backward();
  CHECK(weight.grad().to_vector<float>() == std::vector<float>(6, 0));
}

TEST_CASE("gradients of repeated ids: the same bits for any number of threads, and as exact as f64 sums") {
  Generator generator(3);
  std::vector<std::int64_t> ids;
  for (int i = 0; i < 20000; ++i) ids.push_back(generator.integer(0, 7));
  const Tensor weight = randn({7, 90}, {.requires_grad = true, .generator = &generator});
  const Tensor g = randn({20000, 90}, {.generator = &generator});
  const Tensor index = reshape(ids_of(ids), {20000, 1});
  const Tensor rows = randn({7, 90}, {.requires_grad = true, .generator = &generator});
  const Tensor wide = expand(index, {20000, 90});
  Tensor first, first_gathered;
  for (int threads : {1, 2, 3, 16}) {
    const NumThreadsGuard guard(threads);
    Tensor w = weight, r = rows;
    w.zero_grad();
    r.zero_grad();
    embedding(w, ids_of(ids)).backward(g);
    gather(r, 0, wide).backward(g);
    if (threads == 1) {
      first = w.grad().clone();
      first_gathered = r.grad().clone();
    }
    CHECK(same_bits(w.grad(), first));
    CHECK(same_bits(r.grad(), first_gathered));
  }
  std::vector<double> sums(7 * 90, 0.0);
  const std::vector<float> upstream = g.to_vector<float>();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (std::size_t j = 0; j < 90; ++j) sums[static_cast<std::size_t>(ids[i]) * 90 + j] += upstream[i * 90 + j];
  }
  const std::vector<float> found = first.to_vector<float>(), gathered = first_gathered.to_vector<float>();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    CHECK(found[i] == doctest::Approx(sums[i]).epsilon(1e-6).scale(1));
    CHECK(gathered[i] == doctest::Approx(sums[i]).epsilon(1e-6).scale(1));
  }
}

TEST_CASE("gradients of an id that is read more often than f32 counts") {
  const std::int64_t n = (std::int64_t{1} << 24) + 8;
  const Tensor ids = zeros({n}, {.dtype = DType::i64});
  for (int i = 0; i < 3; ++i) {
    const Tensor x = ones({1}, {.requires_grad = true}), table = reshape(x, {1, 1});
    sum(i == 0 ? gather(x, 0, ids) : i == 1 ? index_select(x, 0, ids) : embedding(table, ids)).backward();
    CHECK(x.grad().item<float>() == static_cast<float>(n));
  }
}

TEST_CASE("16-bit rows are read, and refused where a gradient would be summed") {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    Tensor table = ones({5, 2}).to(dtype);
    CHECK_NOTHROW(embedding(table, ids_of({1, 4})));
    table.set_requires_grad(true);
    const std::string wrong = std::string(" wrong dtype: expected f32 or f64, got ") + to_string(dtype) +
                              " (5, 2) on cpu; convert it with to()";
    CHECK(error_of([&] { embedding(table, ids_of({1, 4})); }) == "[embedding]" + wrong);
    CHECK(error_of([&] { index_select(table, 0, ids_of({1, 4})); }) == "[index_select]" + wrong);
    CHECK(error_of([&] { gather(table, 0, reshape(ids_of({1, 4}), {1, 2})); }) == "[gather]" + wrong);
    const NoGradGuard no_grad;
    CHECK_NOTHROW(embedding(table, ids_of({1, 4})));
  }
}

TEST_CASE("a kernel that computes refuses every dtype but f32 and f64") {
  for (const DType dtype : {DType::bf16, DType::f16, DType::i64, DType::i32, DType::u8, DType::boolean}) {
    CAPTURE(to_string(dtype));
    CHECK_THROWS_AS(dispatch_floating(dtype, [](auto) {}), InternalError);
    const Tensor gy = zeros({1, 2, 3}).to(dtype), gx = zeros({1, 4, 3}).to(dtype);
    const Tensor index = zeros({1, 2, 3}, {.dtype = DType::i64}), ids = zeros({2}, {.dtype = DType::i64});
    Workspace workspace;
    CHECK_THROWS_AS(cpu_index_kernels.gather_backward(workspace, gy.ref(), index.ref(), gx.ref()), InternalError);
    CHECK_THROWS_AS(cpu_index_kernels.select_rows_backward(workspace, gy.ref(), ids.ref(), -1, gx.ref()),
                    InternalError);
  }
}

TEST_CASE("ids outside their range are named before anything is read") {
  const Tensor table = ones({5, 2});
  CHECK(error_of([&] {
          embedding(table, reshape(ids_of({0, 4, 1, 5, 9, 2}), {2, 3}));
        }) == "[embedding] ids[1, 0] = 5; expected 0 <= value < 5");
  CHECK(error_of([&] { embedding(table, ids_of({0, -1})); }) == "[embedding] ids[1] = -1; expected 0 <= value < 5");
  CHECK(error_of([&] {
          index_select(table, 1, ids_of({0, 1, 2}));
        }) == "[index_select] ids[2] = 2; expected 0 <= value < 2");
  CHECK(error_of([&] {
          gather(table, 0, reshape(ids_of({0, 7}), {1, 2}));
        }) == "[gather] index[0, 1] = 7; expected 0 <= value < 5");
  CHECK(error_of([&] { one_hot(ids_of({3}), 3); }) == "[one_hot] ids[0] = 3; expected 0 <= value < 3");
  CHECK(error_of([&] { one_hot(select(ids_of({3}), 0, 0), 3); }) == "[one_hot] ids = 3; expected 0 <= value < 3");
  CHECK_THROWS_AS(embedding(zeros({0, 2}), ids_of({0})), IndexError);
  // The first of several, whichever thread finds its own sooner.
  std::vector<std::int64_t> many(100000, 1);
  many[99999] = 77;
  many[40000] = -3;
  CHECK(error_of([&] { embedding(table, ids_of(many)); }) == "[embedding] ids[40000] = -3; expected 0 <= value < 5");
}

TEST_CASE("indexing: errors of shape, dtype and value") {
  const Tensor table = ones({5, 2});
  CHECK_THROWS_AS(embedding(ones({5}), ids_of({0})), ShapeError);
  CHECK_THROWS_AS(embedding(table, ones({2})), DTypeError);
  CHECK(error_of([&] { embedding(table, ids_of({0}), 5); }) ==
        "[embedding] padding_idx 5 for weight (5, 2); expected a row, 0 <= padding_idx < 5, or -1 for none");
  CHECK_THROWS_AS(gather(table, 1, ids_of({0})), ShapeError);
  CHECK_THROWS_AS(gather(table, 1, reshape(ids_of({0, 0}), {1, 2})), ShapeError);
  CHECK_THROWS_AS(gather(table, 2, ids_of({0})), IndexError);
  CHECK_THROWS_AS(index_select(table, 0, reshape(ids_of({0}), {1, 1})), ShapeError);
  CHECK_THROWS_AS(one_hot(ids_of({0}), -1), ValueError);
  CHECK_THROWS_AS(masked_fill(table, ones({5, 2}), 0), DTypeError);
  CHECK_THROWS_AS(masked_fill(table, Tensor::from_vector<bool>({true, true, true}), 0), ShapeError);
  CHECK_THROWS_AS(masked_fill(ones({2}), Tensor::from_vector<bool>({true, true}, {1, 2}), 0), ShapeError);
}

TEST_CASE("reads and fills take every dtype") {
  const Tensor values = reshape(arange(6), {3, 2});
  const Tensor mask = Tensor::from_vector<bool>({false, true});
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u8}) {
    CAPTURE(to_string(dtype));
    const Tensor x = values.to(dtype);
    const auto read = [](const Tensor& y) { return y.to(DType::f64).to_vector<double>(); };
    CHECK(read(index_select(x, 0, ids_of({2, 0}))) == std::vector<double>{4, 5, 0, 1});
    CHECK(read(gather(x, 1, reshape(ids_of({1, 0, 1}), {3, 1}))) == std::vector<double>{1, 2, 5});
    CHECK(read(masked_fill(x, mask, 7)) == std::vector<double>{0, 7, 2, 7, 4, 7});
    CHECK(read(one_hot(ids_of({1, 0}), 2, dtype)) == std::vector<double>{0, 1, 1, 0});
    CHECK(one_hot(ids_of({1}), 2, dtype).dtype() == dtype);
  }
  CHECK(one_hot(ids_of({1}), 3, DType::boolean).to_vector<bool>() == std::vector<bool>{false, true, false});
}

TEST_CASE("masked_fill replaces infinities and NaN, and stops their gradient") {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = Tensor::from_vector<float>({1, infinity, nan, -2}, {4}, true);
  const Tensor y = masked_fill(x, Tensor::from_vector<bool>({false, true, true, false}), -infinity);
  CHECK(y.to_vector<float>() == std::vector<float>{1, -infinity, -infinity, -2});
  y.backward(Tensor::from_vector<float>({1, nan, infinity, 2}));
  CHECK(x.grad().to_vector<float>() == std::vector<float>{1, 0, 0, 2});
}

TEST_CASE("a mask or index changed in place before the backward is an error that names it") {
  Tensor mask = Tensor::from_vector<bool>({false, true});
  const Tensor x = ones({2}, {.requires_grad = true});
  const Tensor y = sum(masked_fill(x, mask, 0));
  mask.fill_(1);
  const std::string text = error_of([&] { y.backward(); });
  CHECK(text.find("masked_fill") != std::string::npos);
  CHECK(text.find("mask") != std::string::npos);
  Tensor ids = ids_of({0, 1});
  const Tensor z = sum(embedding(ones({2, 2}, {.requires_grad = true}), ids));
  ids.fill_(0);
  CHECK_THROWS_AS(z.backward(), GradError);
}

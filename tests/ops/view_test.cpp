// Views and copies: what shares memory, what is added up, and what the errors say. Values and gradients of every op are
// checked by its rows in tests/op_cases.
#include "ops/view.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "ops/binary.h"
#include "ops/copy.h"
#include "ops/reduce.h"

using namespace polygrad;

namespace {

Tensor counted(const Shape& shape) { return reshape(arange(shape.numel(), {.dtype = DType::f64}), shape); }

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// The elements in row-major order, read one by one through the strides.
std::vector<double> elements(const Tensor& x) { return x.to_vector<double>(); }

}  // namespace

TEST_CASE("a view shares memory and version with its tensor, also a view of a view") {
  Tensor x = zeros({4, 6});
  Tensor part = select(slice(transpose(x, 0, 1), 0, 2, 6), 0, 1);  // column 3 of x
  const std::uint64_t before = x.version();
  part.fill_(5);
  CHECK(x.version() > before);
  CHECK(part.version() == x.version());
  const std::vector<float> values = x.to_vector<float>();
  for (int i = 0; i < 24; ++i) CHECK(values[static_cast<std::size_t>(i)] == (i % 6 == 3 ? 5.0f : 0.0f));
}

TEST_CASE("reshape copies only where the strides make it necessary") {
  const Tensor x = counted({4, 6, 2});
  const auto shares = [](const Tensor& a, const Tensor& b) { return a.ref().data == b.ref().data; };
  CHECK(shares(reshape(x, {8, 6}), x));
  CHECK(shares(reshape(x, {4, 3, 4}), x));
  const Tensor rows = slice(x, 0, 0, 4, 2);  // (2, 6, 2): each row whole, with gaps between
  CHECK(shares(reshape(rows, {2, 12}), rows));
  CHECK(shares(reshape(rows, {2, 1, 3, 4}), rows));
  CHECK_FALSE(shares(reshape(rows, {24}), rows));
  const Tensor turned = transpose(x, 0, 1);  // (6, 4, 2)
  CHECK(shares(reshape(turned, {2, 3, 4, 2}), turned));
  CHECK_FALSE(shares(reshape(turned, {24, 2}), turned));
  const Tensor repeated = expand(counted({1, 3}), {4, 3});
  CHECK(shares(reshape(repeated, {2, 2, 3}), repeated));
  CHECK_FALSE(shares(reshape(repeated, {12}), repeated));
}

TEST_CASE("reshape keeps the row-major order of any layout") {
  const Tensor x = counted({4, 6, 2});
  const std::vector<Tensor> layouts = {x,
                                       transpose(x, 0, 2),
                                       permute(x, {1, 2, 0}),
                                       slice(x, 1, 0, 6, 3),
                                       slice(transpose(x, 0, 1), 1, 1, 4),
                                       expand(slice(x, 2, 1, 2), {4, 6, 2}),
                                       unsqueeze(slice(x, 0, 1, 3), 1),
                                       expand(counted({1, 1, 3}), {4, 2, 3})};
  for (const Tensor& layout : layouts) {
    const std::int64_t n = layout.numel();
    for (const Shape& shape : {Shape{n}, Shape{2, n / 2}, Shape{n / 2, 2}, Shape{2, 1, n / 4, 2}, Shape{2, 2, n / 4},
                               Shape{n / 4, 2, 1, 2}, Shape{1, n, 1}}) {
      CAPTURE(to_string(layout.shape()));
      CAPTURE(to_string(shape));
      CHECK(elements(reshape(layout, shape)) == elements(layout));
    }
  }
}

TEST_CASE("a view used twice adds its gradients") {
  const Tensor x = counted({2, 3}).set_requires_grad(true);
  SUBCASE("slice") {
    const Tensor row = slice(x, 0, 0, 1);
    sum(add(row, row)).backward();
    CHECK(elements(x.grad()) == std::vector<double>{2, 2, 2, 0, 0, 0});
  }
  SUBCASE("overlapping slices") {
    sum(add(slice(x, 1, 0, 2), slice(x, 1, 1, 3))).backward();
    CHECK(elements(x.grad()) == std::vector<double>{1, 2, 1, 1, 2, 1});
  }
  SUBCASE("reshape beside the tensor itself") {
    sum(add(sum(mul(reshape(x, {3, 2}), 3.0)), sum(x))).backward();
    CHECK(elements(x.grad()) == std::vector<double>(6, 4));
  }
  SUBCASE("expand") {
    const Tensor wide = expand(unsqueeze(x, 0), {5, 2, 3});
    sum(add(wide, wide)).backward();
    CHECK(elements(x.grad()) == std::vector<double>(6, 10));
  }
  SUBCASE("a slice of a transposed view") {
    const Tensor column = select(transpose(x, 0, 1), 0, 2);
    sum(mul(column, column)).backward();
    CHECK(elements(x.grad()) == std::vector<double>{0, 0, 4, 0, 0, 10});
  }
}

TEST_CASE("cat hands out parts of one gradient, and nobody's sum runs into a neighbour's") {
  const Tensor a = counted({2, 2}).set_requires_grad(true);
  const Tensor b = counted({1, 2}).set_requires_grad(true);
  const Tensor joined = cat({a, b, a}, 0);
  const Tensor weight = counted({5, 2});
  add(sum(mul(joined, weight)), add(sum(mul(a, 100.0)), sum(mul(b, 1000.0)))).backward();
  CHECK(elements(a.grad()) == std::vector<double>{106, 108, 110, 112});
  CHECK(elements(b.grad()) == std::vector<double>{1004, 1005});
}

TEST_CASE("all pieces of a split give back the whole gradient") {
  const Tensor x = counted({7, 2}).set_requires_grad(true);
  const std::vector<Tensor> pieces = split(x, 3, 0);
  REQUIRE(pieces.size() == 3);
  CHECK(pieces[2].shape() == Shape{1, 2});
  sum(mul(cat(pieces, 0), counted({7, 2}))).backward();
  CHECK(elements(x.grad()) == elements(counted({7, 2})));
}

TEST_CASE("views and copies take every dtype") {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u8}) {
    CAPTURE(to_string(dtype));
    const Tensor x = counted({2, 3}).to(dtype);
    const auto read = [](const Tensor& y) { return elements(y.to(DType::f64)); };
    CHECK(read(transpose(x, 0, 1)) == std::vector<double>{0, 3, 1, 4, 2, 5});
    CHECK(read(cat({x, slice(x, 0, 0, 1)}, 0)) == std::vector<double>{0, 1, 2, 3, 4, 5, 0, 1, 2});
    CHECK(read(stack({select(x, 0, 1), select(x, 0, 0)}, 1)) == std::vector<double>{3, 0, 4, 1, 5, 2});
    CHECK(read(roll(x, {1}, {1})) == std::vector<double>{2, 0, 1, 5, 3, 4});
    CHECK(read(pad(x, {{0, 0}, {1, 0}}, 9)) == std::vector<double>{9, 0, 1, 2, 9, 3, 4, 5});
    CHECK(pad(x, {{0, 0}, {1, 0}}, 9).dtype() == dtype);
  }
  const Tensor flags = Tensor::from_vector<bool>({true, false}, {1, 2});
  CHECK(roll(cat({flags, flags}, 1), {1}, {1}).to_vector<bool>() == std::vector<bool>{false, true, false, true});
}

TEST_CASE("views and copies: error texts") {
  const Tensor x = counted({2, 3, 4});
  CHECK(error_of([&] {
          reshape(x, {5, 5});
        }) ==
        "[reshape] the number of elements differs: (2, 3, 4) to (5, 5); expected 24 elements; one size may be -1, "
        "unless another is 0");
  CHECK_THROWS_AS(reshape(x, {-1, -1}), ShapeError);
  CHECK_THROWS_AS(reshape(x, {-1, 5}), ShapeError);
  CHECK_THROWS_AS(reshape(zeros({0, 3}), {-1, 0}), ShapeError);
  CHECK_THROWS_AS(reshape(x, {-2, -12}), ShapeError);
  CHECK_THROWS_AS(reshape(x, {std::int64_t{1} << 40, std::int64_t{1} << 40}), ShapeError);
  CHECK_THROWS_AS(flatten(x, 2, 1), ShapeError);
  CHECK_THROWS_AS(flatten(x, 0, 3), IndexError);
  CHECK_THROWS_AS(transpose(x, 0, 3), IndexError);
  CHECK(error_of([&] {
          permute(x, {0, 1, 1});
        }) == "[permute] dimensions (0, 1, 1) do not permute (2, 3, 4); expected each of its 3 dimensions once");
  CHECK_THROWS_AS(permute(x, {0, 1}), ShapeError);
  CHECK(error_of([&] { slice(x, 1, 2, 5); }) ==
        "[slice] 2 to 5 of dimension 1 of (2, 3, 4): expected 0 <= start <= end <= 3; kEnd means up to the last");
  CHECK_THROWS_AS(slice(x, 1, 2, 1), IndexError);
  CHECK_THROWS_AS(slice(x, 1, -4, 1), IndexError);
  CHECK_THROWS_AS(slice(x, 1, 0, 3, 0), ValueError);
  CHECK(elements(slice(counted({5}), 0, -2)) == std::vector<double>{3, 4});
  CHECK(elements(slice(counted({5}), 0, 1, -1, 2)) == std::vector<double>{1, 3});
  CHECK(error_of([&] { select(x, 0, 2); }) == "[select] index 2 of dimension 0 of (2, 3, 4); expected -2 <= index < 2");
  for (const std::int64_t step : {std::int64_t{5}, std::int64_t{1} << 62, kEnd}) {
    CHECK(elements(slice(counted({5}), 0, 0, kEnd, step)) == std::vector<double>{0});
    CHECK(elements(slice(counted({5}), 0, 2, 4, step)) == std::vector<double>{2});
    CHECK(slice(counted({5}), 0, 5, kEnd, step).numel() == 0);
    CHECK(elements(slice(expand(counted({2, 1}), {2, 5}), 0, 1, 2, step)) == std::vector<double>(5, 1));
  }
  CHECK(elements(select(counted({5}), 0, -1)) == std::vector<double>{4});
  CHECK(error_of([&] { squeeze(x, 1); }) == "[squeeze] dimension 1 of (2, 3, 4) has size 3; expected 1");
  CHECK_THROWS_AS(unsqueeze(x, 4), IndexError);
  CHECK_THROWS_AS(expand(x, {2, 6, 4}), ShapeError);
  CHECK_THROWS_AS(expand(x, {3, 4}), ShapeError);
  CHECK_THROWS_AS(expand(x, {-1, 2, 3, 4}), ShapeError);

  CHECK_THROWS_AS(cat({}, 0), ValueError);
  CHECK(error_of([&] {
          cat({x, counted({2, 5, 3})}, 1);
        }) == "[cat] shapes differ outside dimension 1: tensor 0 (2, 3, 4), tensor 1 (2, 5, 3)");
  CHECK_THROWS_AS(cat({x, x.to(DType::f32)}, 0), DTypeError);
  CHECK_THROWS_AS(cat({x, x}, 3), IndexError);
  CHECK_THROWS_AS(stack({x, counted({2, 3})}, 0), ShapeError);
  CHECK_THROWS_AS(split(x, 0, 1), ValueError);
  CHECK_THROWS_AS(pad(x, {{0, 0}}, 0), ShapeError);
  CHECK_THROWS_AS(pad(x, {{0, 0}, {0, -1}, {0, 0}}, 0), ValueError);
  CHECK_THROWS_AS(pad(x, {{0, 0}, {0, kEnd}, {0, 0}}, 0), ShapeError);
  CHECK_THROWS_AS(pad(x, {{0, 0}, {kEnd, kEnd}, {0, 0}}, 0), ShapeError);
  CHECK_THROWS_AS(roll(x, {1, 2}, {0}), ValueError);
  CHECK_THROWS_AS(roll(x, {1}, {3}), IndexError);
}

TEST_CASE("an expanded view cannot be written") {
  Tensor x = zeros({1, 3});
  CHECK_THROWS_AS(expand(x, {4, 3}).fill_(1), ValueError);
  CHECK_NOTHROW(expand(x, {1, 3}).fill_(1));  // nothing is repeated
  CHECK(x.to_vector<float>() == std::vector<float>{1, 1, 1});
}

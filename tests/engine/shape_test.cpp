// Shapes: access, editing, counting without overflow, broadcasting; and the texts of their errors.
#include "engine/shape.h"

#include <doctest/doctest.h>

#include <limits>

#include "engine/error.h"

using namespace polygrad;

namespace {
constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
}

TEST_CASE("construction and access") {
  const Shape scalar, shape{2, 3, 4};
  CHECK(scalar.dim() == 0);
  CHECK(scalar.empty());
  CHECK(scalar.numel() == 1);
  CHECK(to_string(scalar) == "()");
  CHECK(to_string(shape) == "(2, 3, 4)");
  CHECK(shape.at(-1) == 4);
  CHECK(shape.at(0) == 2);
  CHECK(shape.back() == 4);
  CHECK(shape.vec() == std::vector<std::int64_t>{2, 3, 4});
  CHECK(shape == Shape(std::vector<std::int64_t>{2, 3, 4}));
  CHECK(shape != Shape{2, 3});
  CHECK(shape != Shape{2, 3, 5});
  CHECK_THROWS_WITH_AS(shape.at(3), "[shape] dimension 3 is out of range: expected -3 to 2", IndexError);
  CHECK_THROWS_WITH_AS(shape.at(-4), "[shape] dimension -4 is out of range: expected -3 to 2", IndexError);
  CHECK_THROWS_WITH_AS(scalar.at(0), "[shape] dimension 0 of a scalar, which has none", IndexError);
  CHECK_THROWS_WITH_AS((Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), "[shape] 9 dimensions; at most 8 are supported", ShapeError);
  CHECK_THROWS_AS(Shape(std::vector<std::int64_t>(1000, 1)), ShapeError);
}

TEST_CASE("editing") {
  Shape shape{3};
  shape.push_back(4);
  shape.insert(0, 2);
  CHECK(shape == Shape{2, 3, 4});
  shape.erase(1);
  CHECK(shape == Shape{2, 4});
  shape.erase(-1);
  CHECK(shape == Shape{2});
  shape[0] = 7;
  CHECK(shape == Shape{7});
  CHECK_THROWS_AS(shape.insert(2, 1), IndexError);
  CHECK_THROWS_AS(shape.erase(1), IndexError);
  Shape full{1, 2, 3, 4, 5, 6, 7, 8};
  CHECK_THROWS_AS(full.push_back(9), ShapeError);
  CHECK(full == Shape{1, 2, 3, 4, 5, 6, 7, 8});
}

TEST_CASE("the number of elements never wraps around") {
  CHECK(Shape{2, 0, 3}.numel() == 0);
  CHECK(Shape{kLargest}.numel() == kLargest);
  CHECK(Shape{0, kLargest}.numel() == 0);
  CHECK_THROWS_AS((Shape{0, kLargest, kLargest}.numel()), ShapeError);  // its strides would overflow
  CHECK_THROWS_WITH_AS((Shape{std::int64_t{1} << 32, std::int64_t{1} << 32}.numel()),
                       "[shape] the number of elements of (4294967296, 4294967296) overflows 64 bits", ShapeError);
  CHECK_THROWS_AS((Shape{kLargest, 2}.numel()), ShapeError);
  CHECK_THROWS_WITH_AS((Shape{2, -1}.numel()), "[shape] negative size in (2, -1)", ShapeError);
  CHECK_THROWS_AS((Shape{0, -1}.numel()), ShapeError);
}

TEST_CASE("row-major strides") {
  CHECK(Shape{2, 3, 4}.contiguous_strides() == Shape{12, 4, 1});
  CHECK(Shape{0, kLargest}.contiguous_strides() == Shape{kLargest, 1});
  CHECK(Shape{}.contiguous_strides() == Shape{});
  CHECK(Shape{5}.contiguous_strides() == Shape{1});
}

TEST_CASE("broadcasting") {
  CHECK(broadcast_shapes("add", {2, 1, 4}, {3, 1}) == Shape{2, 3, 4});
  CHECK(broadcast_shapes("add", {}, {2, 3}) == Shape{2, 3});
  CHECK(broadcast_shapes("add", {1}, {0}) == Shape{0});
  CHECK(broadcast_shapes("add", {3, 0}, {1, 1}) == Shape{3, 0});
  CHECK_THROWS_WITH_AS(broadcast_shapes("add", {2, 3}, {2, 4}),
                       "[add] shapes do not broadcast: (2, 3) and (2, 4); expected equal sizes, or 1, from the right",
                       ShapeError);
  CHECK_THROWS_AS(broadcast_shapes("add", {0}, {2}), ShapeError);
}

TEST_CASE("dimensions from the end") {
  CHECK(normalize_dim("sum", -1, 3) == 2);
  CHECK(normalize_dim("sum", 0, 3) == 0);
  CHECK_THROWS_WITH_AS(normalize_dim("sum", 3, 3), "[sum] dimension 3 is out of range: expected -3 to 2", IndexError);
  CHECK_THROWS_AS(normalize_dim("sum", std::numeric_limits<int>::min(), 3), IndexError);
}

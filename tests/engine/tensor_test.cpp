// Tensors: making them, reading them, views and their versions, writing in place.
#include "engine/tensor.h"

#include <doctest/doctest.h>

#include <limits>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "tests/engine/tiny_ops.h"

using namespace polygrad;
using doctest::Contains;

TEST_CASE("a handle shares, clone copies") {
  Tensor a = Tensor::from_vector(std::vector<float>{1, 2, 3});
  const Tensor shared = a, copy = a.clone();
  a.fill_(7);
  CHECK(shared.to_vector<float>() == std::vector<float>{7, 7, 7});
  CHECK(copy.to_vector<float>() == std::vector<float>{1, 2, 3});
  CHECK(shared.is_same(a));
  CHECK_FALSE(copy.is_same(a));
}

TEST_CASE("an undefined tensor says so") {
  Tensor nothing;
  CHECK_FALSE(nothing.defined());
  CHECK(describe(nothing) == "an undefined tensor");
  CHECK_THROWS_AS(nothing.shape(), ValueError);
  CHECK_THROWS_AS(nothing.data<float>(), ValueError);
  CHECK_THROWS_AS(nothing.clone(), ValueError);
  CHECK_THROWS_AS(nothing.fill_(1), ValueError);
  CHECK_THROWS_AS(nothing.grad(), ValueError);
  CHECK_THROWS_AS(nothing.backward(), ValueError);
  CHECK_THROWS_AS(nothing.version(), ValueError);
  CHECK_THROWS_AS(zeros({2}).copy_(nothing), ValueError);
}

TEST_CASE("what a tensor is") {
  const Tensor x = zeros({2, 3}, {.dtype = DType::f64, .requires_grad = true});
  CHECK(x.shape() == Shape{2, 3});
  CHECK(x.dim() == 2);
  CHECK(x.size(-1) == 3);
  CHECK(x.strides() == Shape{3, 1});
  CHECK(x.numel() == 6);
  CHECK(x.dtype() == DType::f64);
  CHECK(x.device() == Device::cpu());
  CHECK(x.requires_grad());
  CHECK_FALSE(zeros_like(x).requires_grad());
  CHECK(describe(x) == "f64 (2, 3) on cpu");
  CHECK(reinterpret_cast<std::uintptr_t>(x.data<double>()) % 64 == 0);
}

TEST_CASE("sizes that cannot be") {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  CHECK_THROWS_WITH_AS(zeros({2, -3}), Contains("negative size in (2, -3)"), ShapeError);
  CHECK_THROWS_WITH_AS(Tensor::empty({kHuge, kHuge}), Contains("overflows 64 bits"), ShapeError);
  CHECK_THROWS_WITH_AS(Tensor::empty({kHuge}), Contains("overflows 64 bits"), ShapeError);  // 2^64 bytes
  CHECK_THROWS_AS(Tensor::empty({kHuge / 4}), OutOfMemoryError);
  CHECK(Tensor::empty({0, kHuge}).is_contiguous());
  CHECK_THROWS_AS(Tensor::empty({0, kHuge, kHuge}), ShapeError);
  CHECK_THROWS_WITH_AS(Tensor::from_vector(std::vector<float>{1, 2, 3}, {2, 2}),
                       Contains("3 values for shape (2, 2); expected 4"), ShapeError);
  CHECK_THROWS_AS(zeros({2}, {.dtype = DType::i64, .requires_grad = true}), DTypeError);
}

TEST_CASE("a build without CUDA says what to do") {
  if (cuda_device_count() > 0) return;
  CHECK_THROWS_WITH_AS(zeros({2}, {.device = Device::cuda()}), Contains("-DPOLYGRAD_CUDA=ON"), DeviceError);
  CHECK_THROWS_AS(zeros({2}).to(Device::cuda()), DeviceError);
  CHECK(parse_device("cuda") == Device::cuda(0));
  CHECK(parse_device("cuda:3") == Device::cuda(3));
  CHECK(to_string(parse_device("cpu")) == "cpu");
  for (const char* wrong : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "cuda:99999999999999999999"}) {
    CHECK_THROWS_AS(parse_device(wrong), ValueError);
  }
}

TEST_CASE("elements") {
  const Tensor x = Tensor::from_vector(std::vector<float>{1.5f, -2.5f});
  CHECK_THROWS_WITH_AS(x.to_vector<double>(), "[to_vector] the tensor is f32, not f64; convert it with to()",
                       DTypeError);
  CHECK_THROWS_WITH_AS(x.data<std::int64_t>(), "[data] the tensor is f32, not i64; convert it with to()", DTypeError);
  CHECK_THROWS_WITH_AS(x.item<float>(), "[item] shape (2) has 2 elements; expected exactly one", ShapeError);
  CHECK_THROWS_AS(Tensor::empty({0}).item<float>(), ShapeError);
  CHECK(Tensor::from_vector(std::vector<std::int64_t>{7}, {1, 1}).item<double>() == 7);
  CHECK(Tensor::from_vector(std::vector<double>{-7.9}, {}).item<std::int32_t>() == -7);
  CHECK(Tensor::from_vector(std::vector<bool>{true}).item<bool>());
  CHECK(Tensor::empty({3, 0}).to_vector<float>().empty());
}

TEST_CASE("memory of the caller's") {
  std::vector<float> memory{1, 2, 3, 4};
  int deleted = 0;
  {
    Tensor x = Tensor::from_blob(memory.data(), {2, 2}, DType::f32, [&](void* pointer) {
      CHECK(pointer == memory.data());
      ++deleted;
    });
    const Tensor view = make_view(x, {2}, {2}, 1);
    x.fill_(5);
    CHECK(memory == std::vector<float>{5, 5, 5, 5});
    x = Tensor();
    CHECK(deleted == 0);
    CHECK(view.to_vector<float>() == std::vector<float>{5, 5});
  }
  CHECK(deleted == 1);
  Tensor::from_blob(memory.data(), {4});
  CHECK_THROWS_WITH_AS(Tensor::from_blob(reinterpret_cast<char*>(memory.data()) + 1, {1}),
                       Contains("not aligned for f32"), ValueError);
  CHECK_THROWS_AS(Tensor::from_blob(nullptr, {1}), ValueError);
}

TEST_CASE("a gradient in memory of the caller's is copied, never kept") {
  const Tensor x = zeros({2}, {.requires_grad = true});
  std::vector<float> memory{1, 2};
  const auto borrow = [&](const Tensor&, NeededMask) { return Gradients{Tensor::from_blob(memory.data(), {2})}; };
  record("borrow", zeros({2}), {x}, borrow).backward(ones({2}));
  CHECK(x.grad().ref().data != memory.data());
  memory.assign(2, -1);
  CHECK(x.grad().to_vector<float>() == std::vector<float>{1, 2});
}

TEST_CASE("views") {
  const Tensor x = Tensor::from_vector(std::vector<float>{0, 1, 2, 3, 4, 5}, {2, 3});
  const Tensor t = make_view(x, {3, 2}, {1, 3}, 0);
  CHECK_FALSE(t.is_contiguous());
  CHECK(t.to_vector<float>() == std::vector<float>{0, 3, 1, 4, 2, 5});
  CHECK(t.contiguous().strides() == Shape{2, 1});
  CHECK(x.contiguous().is_same(x));
  CHECK(make_view(x, {2, 2}, {0, 3}, 1).to_vector<float>() == std::vector<float>{1, 4, 1, 4});
  CHECK(make_view(x, {3}, {-1}, 2).to_vector<float>() == std::vector<float>{2, 1, 0});
  CHECK(make_view(make_view(x, {3}, {1}, 3), {2}, {1}, 1).to_vector<float>() == std::vector<float>{4, 5});
  CHECK(make_view(x, {}, {}, 5).item<float>() == 5);
  CHECK_THROWS_AS(make_view(x, {7}, {1}, 0), IndexError);
  CHECK_THROWS_AS(make_view(x, {1}, {1}, 6), IndexError);
  CHECK_THROWS_AS(make_view(x, {2}, {-1}, 0), IndexError);
  CHECK_THROWS_AS(make_view(x, {1}, {1}, -1), IndexError);
  CHECK_THROWS_AS(make_view(x, {2, 2}, {1, std::numeric_limits<std::int64_t>::max()}, 1), IndexError);
  CHECK_NOTHROW(make_view(x, {0}, {1}, 6));
  CHECK(make_view(x, {1, 6}, {100, 1}, 0).is_contiguous());  // the stride of a single row is never used
}

TEST_CASE("the version belongs to the family of views") {
  Tensor x = zeros({4});
  const std::uint64_t before = x.version();
  Tensor view = make_view(x, {2}, {1}, 0);
  const Tensor detached = x.detach(), copy = x.clone();
  view.fill_(1);
  CHECK(x.version() == before + 1);
  CHECK(detached.version() == before + 1);
  CHECK(copy.version() == 0);
  x.copy_(ones({4}));
  CHECK(view.version() == before + 2);
  CHECK_THROWS(x.copy_(ones({3})));
  CHECK(x.version() == before + 2);  // a refused write is none
}

TEST_CASE("in place: where it is allowed") {
  Tensor leaf = zeros({2}, {.requires_grad = true});
  CHECK_THROWS_WITH_AS(leaf.fill_(1), Contains("[fill_] in place on a leaf that needs a gradient"), GradError);
  {
    const NoGradGuard no_grad;
    leaf.fill_(1);
  }
  CHECK(leaf.to_vector<float>() == std::vector<float>{1, 1});

  const Tensor x = tiny::leaf({1, 2}, {2});
  Tensor y = tiny::scale(x, 2);
  CHECK_THROWS_WITH_AS(y.fill_(1), Contains("[fill_] in place on the result of scale"), GradError);
  {
    const NoGradGuard no_grad;  // a recorded result stays protected
    CHECK_THROWS_AS(y.fill_(1), GradError);
    CHECK_THROWS_AS(y.copy_(x), GradError);
  }
  CHECK(y.to_vector<double>() == std::vector<double>{2, 4});

  Tensor constant = zeros({2}, {.dtype = DType::f64});
  CHECK_THROWS_WITH_AS(constant.copy_(y), Contains("[copy_] the source needs a gradient"), GradError);
  constant.copy_(y.detach());
  CHECK(constant.to_vector<double>() == std::vector<double>{2, 4});
}

TEST_CASE("in place on memory that overlaps itself is refused") {
  const Tensor x = zeros({4});
  for (Tensor view : {make_view(x, {3}, {0}, 0), make_view(x, {2, 2}, {1, 1}, 0), make_view(x, {2, 3}, {0, 1}, 0)}) {
    CHECK_THROWS_WITH_AS(view.fill_(1), Contains("several elements share one place in memory"), ValueError);
    CHECK_THROWS_AS(view.copy_(ones(view.shape())), ValueError);
  }
  make_view(x, {2, 2}, {1, 2}, 0).fill_(3);        // a transpose is fine
  make_view(x, {1, 2, 2}, {0, 2, 1}, 0).fill_(4);  // and so is a stride of 0 for a single row
  make_view(x, {0}, {0}, 0).fill_(5);
  CHECK(x.to_vector<float>() == std::vector<float>{4, 4, 4, 4});
}

TEST_CASE("copy_ between views of one memory behaves as if the source had been copied first") {
  Tensor x = Tensor::from_vector(std::vector<float>{0, 1, 2, 3, 4, 5});
  make_view(x, {5}, {1}, 1).copy_(make_view(x, {5}, {1}, 0));
  CHECK(x.to_vector<float>() == std::vector<float>{0, 0, 1, 2, 3, 4});
  Tensor square = Tensor::from_vector(std::vector<float>{1, 2, 3, 4}, {2, 2});
  square.copy_(make_view(square, {2, 2}, {1, 2}, 0));
  CHECK(square.to_vector<float>() == std::vector<float>{1, 3, 2, 4});
}

TEST_CASE("copy_ casts, and checks shapes") {
  Tensor x = zeros({2}, {.dtype = DType::i32});
  x.copy_(Tensor::from_vector(std::vector<double>{1.9, -1.9}));
  CHECK(x.to_vector<std::int32_t>() == std::vector<std::int32_t>{1, -1});
  CHECK_THROWS_WITH_AS(x.copy_(zeros({3})), "[copy_] shapes differ: (2) from (3); expected equal shapes", ShapeError);
}

TEST_CASE("large and oddly strided copies, in parallel pieces") {
  const std::int64_t rows = 700, columns = 301;
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Tensor x = Tensor::from_vector(values, {rows, columns});
  const std::vector<float> t = make_view(x, {columns, rows}, {1, columns}, 0).to_vector<float>();
  bool equal = true;
  for (std::int64_t i = 0; i < columns; ++i) {
    for (std::int64_t j = 0; j < rows; ++j) {
      equal &= t[static_cast<std::size_t>(i * rows + j)] == values[static_cast<std::size_t>(j * columns + i)];
    }
  }
  CHECK(equal);
}

TEST_CASE("factories") {
  CHECK(full({2}, 2.5).to_vector<float>() == std::vector<float>{2.5f, 2.5f});
  CHECK(ones({2}, {.dtype = DType::u8}).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{1, 1});
  CHECK(arange(4).to_vector<float>() == std::vector<float>{0, 1, 2, 3});
  CHECK(arange(1, 0, -0.25).to_vector<float>() == std::vector<float>{1, 0.75f, 0.5f, 0.25f});
  CHECK(arange(3, 3).numel() == 0);
  CHECK_THROWS_AS(arange(0, 1, 0), ValueError);
  CHECK_THROWS_AS(arange(0, 1, -1), ValueError);
  CHECK_THROWS_AS(arange(0, std::numeric_limits<double>::infinity()), ValueError);
  CHECK_THROWS_AS(randn({2}, {.dtype = DType::i32}), DTypeError);
}

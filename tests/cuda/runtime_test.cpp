// The engine on a GPU: tensors there and back, the six kernels, the allocator, streams. Runs on the CPU's CUDA runtime
// (tests/cuda/host), or on a GPU in a build with CUDA.
#include <doctest/doctest.h>

#include <limits>
#include <numeric>
#include <thread>

#include "engine/autograd.h"
#include "engine/backend/cuda/walk.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/generator.h"
#include "engine/memory.h"
#include "engine/moment.h"
#include "engine/prefetch.h"
#include "engine/testing.h"
#include "tests/cuda/gpu.h"
#if defined(POLYGRAD_HOST_CUDA)
#include "tests/cuda/host/host_cuda.h"
#endif

using namespace polygrad;
using polygrad::testing::gpu;

namespace {

const std::vector<DType> kAll = {DType::f32, DType::f64, DType::bf16, DType::f16,
                                 DType::i64, DType::i32, DType::u8,   DType::boolean};

// Numbers that every dtype can take, some beyond the range of the narrow ones.
Tensor samples(const Shape& shape, DType dtype) {
  std::vector<double> values(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>((i * 37) % 101) * 0.75 - 20;
  return Tensor::from_vector(values, shape).to(dtype);
}

std::vector<double> numbers(const Tensor& tensor) {
  return tensor.to(Device::cpu()).to(DType::f64).to_vector<double>();
}

// An order of the dimensions other than that of the memory.
Tensor turned(const Tensor& x) {
  Shape shape = x.shape(), strides = x.strides();
  std::swap(shape[0], shape[x.dim() - 1]);
  std::swap(strides[0], strides[x.dim() - 1]);
  return make_view(x, shape, strides, 0);
}

}  // namespace

TEST_CASE("division by a known number") {
  Generator generator(1);
  for (std::int64_t by = 1; by < (std::int64_t{1} << 31); by += by < 2000 ? 1 : by / 3 + generator.integer(0, 50)) {
    const cuda::Divisor divisor(by);
    for (const std::int64_t n : {std::int64_t{0}, by - 1, by, 2 * by - 1, (std::int64_t{1} << 31) - 1,
                                 generator.integer(0, std::int64_t{1} << 31), 7 * by + (std::int64_t{1} << 40)}) {
      std::int64_t rest = -1;
      const bool right = divisor.split(n, &rest) == n / by && rest == n % by;
      CHECK_MESSAGE(right, n << " / " << by);
    }
  }
}

TEST_CASE("a tensor goes to the device and comes back, with every dtype and any strides") {
  POLYGRAD_NEEDS_GPU();
  for (DType dtype : kAll) {
    CAPTURE(to_string(dtype));
    const Tensor x = samples({3, 5, 7}, dtype);
    const Tensor there = x.to(gpu());
    CHECK(there.device() == gpu());
    CHECK(numbers(there) == numbers(x));
    CHECK(numbers(turned(x).to(gpu())) == numbers(turned(x)));
    CHECK(numbers(turned(there)) == numbers(turned(x)));
  }
  CHECK(samples({0, 3}, DType::f32).to(gpu()).to(Device::cpu()).numel() == 0);
  CHECK(full({}, 4, {.device = gpu()}).item<double>() == 4);
  CHECK_THROWS_WITH_AS(full({2}, 1, {.device = gpu()}).data<float>(),
                       "[data] the tensor is on cuda:0; copy it with to(Device::cpu())", DeviceError);
}

TEST_CASE("more than the staging buffers hold") {
  POLYGRAD_NEEDS_GPU();
  const std::int64_t count = (9 << 20) / 4 + 3;  // three pieces
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0.0f);
  Tensor x = Tensor::from_vector(values);
  const Tensor there = x.to(gpu());
  x.fill_(-1);  // it has been read
  CHECK(there.to_vector<float>() == values);
}

TEST_CASE("the gradient of to(device) comes back to where the input is") {
  POLYGRAD_NEEDS_GPU();
  const Tensor x = Tensor::from_vector<float>({1, 2, 3}, {3}, true);
  x.to(gpu()).backward(full({3}, 2, {.device = gpu()}));
  CHECK(x.grad().device() == Device::cpu());
  CHECK(x.grad().to_vector<float>() == std::vector<float>{2, 2, 2});
}

TEST_CASE("casts give what the CPU gives") {
  POLYGRAD_NEEDS_GPU();
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor special =
      Tensor::from_vector<double>({0,     -0.0,    1.5,   -1.5, 255.9, 300,    -300,  3e9, -3e9, 1e19,
                                   70000, 65519.9, 65520, 1e-7, 3e-8,  2.9e-8, 1e300, inf, -inf, nan});
  for (DType from : kAll) {
    for (DType to : kAll) {
      CAPTURE(to_string(from));
      CAPTURE(to_string(to));
      for (const Tensor& values : {special, turned(samples({4, 3, 5}, DType::f64))}) {
        const Tensor x = values.to(from), expected = x.to(to), got = x.to(gpu()).to(to);
        const std::vector<double> a = numbers(expected), b = numbers(got);
        for (std::size_t i = 0; i < a.size(); ++i) {
          CHECK_MESSAGE(((a[i] == b[i]) || (a[i] != a[i] && b[i] != b[i])),
                        "element " << i << ": " << a[i] << ", " << b[i]);
        }
      }
    }
  }
}

TEST_CASE("fill, copy and accumulate through strides, within a larger tensor") {
  POLYGRAD_NEEDS_GPU();
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    CAPTURE(to_string(dtype));
    std::vector<double> results[2];
    for (const Device device : {Device::cpu(), gpu()}) {
      Tensor whole = samples({6, 8, 10}, dtype).to(device);
      // Rows 1, 3, 5, columns 2 to 7, of every second slab.
      const Tensor part = make_view(whole, {3, 3, 6}, {160, 20, 1}, 12);
      make_view(part, {3, 6}, {160, 1}, 12).fill_(7.25);
      make_view(part, {3, 3, 6}, {160, 20, 1}, 12).copy_(samples({3, 3, 6}, dtype).to(device));
      results[device == gpu()] = numbers(whole);
    }
    CHECK(results[0] == results[1]);
    // A leaf's gradient adds up, in a pinned buffer.
    Tensor sums[2];
    for (const Device device : {Device::cpu(), gpu()}) {
      Tensor leaf = samples({5, 9}, dtype).to(device).detach();
      leaf.set_requires_grad(true);
      Tensor buffer = samples({5, 9}, dtype).to(device);
      leaf.pin_grad(buffer);
      leaf.clone().backward(turned(samples({9, 5}, dtype).to(device)));
      sums[device == gpu()] = buffer;
    }
    CHECK(numbers(sums[0]) == numbers(sums[1]));
  }
}

TEST_CASE("is_finite") {
  POLYGRAD_NEEDS_GPU();
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (std::int64_t count : {1, 31, 1000, 70000}) {
      Tensor x = full({count}, 3, {.dtype = dtype, .device = gpu()});
      CHECK(all_finite(x));
      for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
        Tensor y = x.clone();
        make_view(y, {1}, {1}, count - 1).fill_(bad);
        CHECK_FALSE(all_finite(y));
        CHECK(all_finite(make_view(y, {count - 1}, {1}, 0)));
      }
    }
  }
}

TEST_CASE("random numbers have the CPU's bits") {
  POLYGRAD_NEEDS_GPU();
  for (DType dtype : {DType::f32, DType::f64}) {
    for (std::int64_t count : {1, 4, 1027}) {
      Generator a(17, 5), b(17, 5);
      const Tensor uniform = rand({count}, {.dtype = dtype, .device = gpu(), .generator = &a});
      const Tensor normal = randn({count}, {.dtype = dtype, .device = gpu(), .generator = &a});
      CHECK(numbers(uniform) == numbers(rand({count}, {.dtype = dtype, .generator = &b})));
      CHECK(numbers(normal) == numbers(randn({count}, {.dtype = dtype, .generator = &b})));
    }
  }
}

TEST_CASE("memory: what is freed is given out again, is counted, and obeys a limit") {
  POLYGRAD_NEEDS_GPU();
  trim_memory(gpu());
  const MemoryStats before = memory_stats(gpu());
  CHECK(before.bytes_cached == 0);
  void* first = nullptr;
  {
    const Tensor x = Tensor::empty({1000}, {.device = gpu()});
    first = x.ref().data;
    CHECK(memory_stats(gpu()).bytes_in_use - before.bytes_in_use >= 4000);
  }
  CHECK(memory_stats(gpu()).bytes_cached >= 4000);
  {
    const Tensor x = Tensor::empty({1000}, {.device = gpu()});
    CHECK(x.ref().data == first);
    CHECK(memory_stats(gpu()).fresh_allocations == before.fresh_allocations + 1);
  }
  reset_peak_memory(gpu());
  CHECK(memory_stats(gpu()).peak_bytes_in_use == memory_stats(gpu()).bytes_in_use);
  set_memory_limit(memory_stats(gpu()).bytes_in_use + (1 << 20), gpu());
  CHECK_NOTHROW(Tensor::empty({100000}, {.device = gpu()}));
  CHECK_THROWS_AS(Tensor::empty({1000000}, {.device = gpu()}), OutOfMemoryError);
  set_memory_limit(0, gpu());
  trim_memory(gpu());
  CHECK(memory_stats(gpu()).bytes_cached == 0);
  CHECK_THROWS_WITH_AS(Tensor::empty({std::int64_t{1} << 50}, {.device = gpu()}),
                       doctest::Contains("[allocate] out of memory on cuda:0: requested 4503599627370496 bytes; "),
                       OutOfMemoryError);
}

TEST_CASE("a block that another thread's stream still reads is not written before") {
  POLYGRAD_NEEDS_GPU();
  for (int turn = 0; turn < 3; ++turn) {
    Tensor result;
    {
      Tensor x = full({5000}, 3, {.device = gpu()});
      synchronize(gpu());
      std::thread([&] {
        result = x.clone();  // in the other thread's stream
        x = Tensor();        // ... which frees the block of this thread's
        // Here it comes back, to be written at once: that must wait for the clone.
        std::thread([] {}).join();
      }).join();
    }
    Tensor y = full({5000}, 9, {.device = gpu()});
    synchronize(gpu());
    CHECK(numbers(result) == std::vector<double>(5000, 3));
  }
}

TEST_CASE("a prefetched tensor is there when it is used, and its memory is taken again in order") {
  POLYGRAD_NEEDS_GPU();
  Prefetch next(full({3000}, 0), gpu());
  for (int i = 1; i <= 5; ++i) {
    const Tensor batch = next.get();
    next = Prefetch(full({3000}, i), gpu());
    const Tensor copy = batch.clone();
    CHECK(batch.device() == gpu());
    if (i % 2 == 0) CHECK(numbers(copy) == std::vector<double>(3000, i - 1));
  }
  CHECK(numbers(next.get()) == std::vector<double>(3000, 5));
  CHECK(Prefetch(full({2}, 1), Device::cpu()).get().to_vector<float>() == std::vector<float>{1, 1});
  CHECK_FALSE(Prefetch().get().defined());
}

TEST_CASE("moments: what lies between two of them takes time on the device, and making one doesn't wait") {
  POLYGRAD_NEEDS_GPU();
  Tensor x = ones({64, 64}, {.device = gpu()});
#if defined(POLYGRAD_HOST_CUDA)
  const std::uint64_t waits = host_cuda::counts().waits;
#endif
  const Moment first(gpu());
  for (int i = 0; i < 20; ++i) x.fill_(i);
  const Moment second(gpu());
  x.fill_(0);
  const Moment third(gpu());
#if defined(POLYGRAD_HOST_CUDA)
  CHECK(host_cuda::counts().waits == waits);
#endif
  const double twenty = second.seconds_since(first), all = third.seconds_since(first);
  CHECK(twenty > 0);
  CHECK(all >= twenty);
  CHECK(all < 60);
  CHECK(first.seconds_since(third) == doctest::Approx(-all));
  CHECK_THROWS_AS(second.seconds_since(Moment(Device::cpu())), DeviceError);
  CHECK(device_name(gpu()) != "");
  CHECK(device_name(Device::cpu()) == "the CPU");
}

TEST_CASE("fresh memory is poisoned where a test asks for it") {
  POLYGRAD_NEEDS_GPU();
  const polygrad::testing::PoisonGuard poison;
  CHECK_FALSE(all_finite(Tensor::empty({100}, {.device = gpu()})));
}

TEST_CASE("devices that are not there") {
  POLYGRAD_NEEDS_GPU();
  CHECK_THROWS_AS(check_device(Device::cuda(99)), DeviceError);
  CHECK_THROWS_WITH_AS(Tensor::empty({2}, {.device = Device::cuda(33)}),
                       doctest::Contains("[device] there is no cuda:33; this machine has"), DeviceError);
}

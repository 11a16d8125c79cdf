// Captured work: what a replay does, which memory it owns, what is refused.
#include "engine/capture.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/memory.h"
#include "ops/binary.h"
#include "ops/reduce.h"
#include "tests/cuda/gpu.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

Tensor there(const std::vector<float>& values) { return Tensor::from_vector(values).to(gpu()); }

}  // namespace

TEST_CASE("a replay reads what its inputs hold then, and writes where the capture did") {
  POLYGRAD_NEEDS_GPU();
  Tensor x = there({1, 2, 3});
  const Tensor factor = there({2, 2, 2});
  Tensor y;
  const Capture twice(gpu(), [&] { y = add(mul(x, factor), 1); });
  twice.run();
  CHECK(y.to_vector<float>() == std::vector<float>{3, 5, 7});
  x.copy_(there({10, 20, 30}));
  twice.run();
  const Tensor kept = y.clone();
  x.fill_(0);
  twice.run();
  CHECK(kept.to_vector<float>() == std::vector<float>{21, 41, 61});
  CHECK(y.to_vector<float>() == std::vector<float>{1, 1, 1});
}

TEST_CASE("a capture's memory is nobody else's while it lives, and everybody's afterwards") {
  POLYGRAD_NEEDS_GPU();
  constexpr std::int64_t kCount = 1 << 16;
  const TensorOptions on_gpu{.device = gpu()};
  Tensor x = ones({kCount}, on_gpu), total = zeros({}, on_gpu);
  auto capture = std::make_unique<Capture>(gpu(), [&] {
    total.copy_(sum(mul(add(x, 1), 3)));  // intermediate results are freed, and used again by the replays
  });
  capture->run();
  // Whatever is made and freed between two replays: the same result.
  for (int i = 0; i < 3; ++i) {
    std::vector<Tensor> others;
    for (int k = 0; k < 6; ++k) others.push_back(full({kCount}, 100 + k, on_gpu));
    capture->run();
    CHECK(total.item<float>() == 6.0f * kCount);
    for (int k = 0; k < 6; ++k) {
      const std::vector<float> values = others[static_cast<std::size_t>(k)].to_vector<float>();
      CHECK(std::count(values.begin(), values.end(), static_cast<float>(100 + k)) == kCount);
    }
  }
  const std::uint64_t before = memory_stats(gpu()).fresh_allocations;
  capture.reset();
  const Tensor again = mul(add(x, 1), 3);  // out of what the capture had
  CHECK(again.to_vector<float>().front() == 6);
  CHECK(memory_stats(gpu()).fresh_allocations == before);
}

TEST_CASE("gradients of a captured backward") {
  POLYGRAD_NEEDS_GPU();
  Tensor x = there({1, 2, 3}), w = there({1, 1, 1}).set_requires_grad(true);
  const Capture step(gpu(), [&] { sum(mul(mul(w, w), x)).backward(); });
  const Tensor gradient = w.grad();
  step.run();
  CHECK(gradient.to_vector<float>() == std::vector<float>{2, 4, 6});
  {
    const NoGradGuard no_grad;
    w.fill_(5);
  }
  step.run();
  CHECK(gradient.to_vector<float>() == std::vector<float>{10, 20, 30});
}

TEST_CASE("what would be missing in a replay is refused, and the stream goes on") {
  POLYGRAD_NEEDS_GPU();
  Tensor x = there({1, 2, 3});
  CHECK_THROWS_WITH_AS(Capture(gpu(), [&] { mul(x, 2).to_vector<float>(); }), doctest::Contains("[capture]"),
                       InternalError);
  CHECK_THROWS_WITH_AS(
      Capture(gpu(), [&] { there({4}); }),
      "[capture] a copy from the host while work is being captured; run it once without a capture first",
      InternalError);
  CHECK_THROWS_AS(Capture(gpu(), [&] { throw ValueError("mine"); }), ValueError);
  CHECK_THROWS_AS(Capture(Device::cpu(), [] {}), DeviceError);
  CHECK_THROWS_AS(Capture().run(), ValueError);
  CHECK(mul(x, 2).to_vector<float>() == std::vector<float>{2, 4, 6});
}

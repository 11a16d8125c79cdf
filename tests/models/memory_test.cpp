// Memory over time: training and inference that go on for long must not grow.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "engine/autograd.h"
#include "engine/factory.h"
#include "engine/memory.h"
#include "engine/parallel.h"
#include "models/optim/adamw.h"
#include "models/zoo.h"
#include "ops/loss.h"

using namespace polygrad;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kResidentSizeTells = false;  // freed memory stays in the sanitizer's quarantine
#else
constexpr bool kResidentSizeTells = true;
#endif

double resident_mib() {
  long size = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return -1;
  const int read = std::fscanf(file, "%ld %ld", &size, &resident);
  std::fclose(file);
  return read == 2 ? static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20) : -1;
}

// Smallest and largest of what it has seen.
struct Range {
  double least = 1e300, most = 0;
  void add(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
  void check_flat(double tolerance) const {
    if (!kResidentSizeTells) return;
    CAPTURE(least);
    CAPTURE(most);
    REQUIRE(least > 0);
    CHECK(most <= least * (1 + tolerance));
  }
};

ModelConfig small_config() {
  ModelConfig config;
  config.image_size = {32, 32};
  config.patch_size = {4, 4};
  config.embed_dim = 48;
  config.num_heads = 3;
  config.depth = 2;
  config.num_classes = 10;
  config.phi = {"x3"};
  config.dropout = 0.1;
  config.drop_path = 0.1;
  return config;
}

}  // namespace

TEST_CASE("300 training steps: resident size is flat, and all memory comes back with graph and model") {
  const std::size_t start = memory_stats().bytes_in_use;
  Range resident;
  {
    const std::unique_ptr<Model> model = create_model("vit_tiny", small_config());
    AdamW optimizer(param_groups(*model, 0.05));
    Generator generator(1);
    const Tensor images = randn({8, 3, 32, 32}, {.generator = &generator});
    const Tensor labels = Tensor::from_vector<std::int64_t>({0, 1, 2, 3, 4, 5, 6, 7});
    std::size_t in_use_after_first = 0;
    Tensor loss;  // the last graph is alive while the next is made, as in a careless loop
    for (int step = 0; step < 300; ++step) {
      const ForwardContext context{.training = true, .seed = 3, .step = step};
      loss = cross_entropy(model->forward(images, context), labels);
      loss.backward();
      optimizer.step({.lr = 1e-3, .beta1 = {}});
      optimizer.zero_grad();
      if (step == 0) in_use_after_first = memory_stats().bytes_in_use;
      if (step >= 50) resident.add(resident_mib());
    }
    CHECK(memory_stats().bytes_in_use == in_use_after_first);
    // A graph that is never walked.
    loss = cross_entropy(model->forward(images, {.training = true}), labels);
    CHECK(memory_stats().bytes_in_use > in_use_after_first);
  }
  CHECK(memory_stats().bytes_in_use == start);
  resident.check_flat(0.02);
}

TEST_CASE("inference with batches of varying size, each in a new thread: resident size is flat") {
  trim_memory();
  const std::size_t start = memory_stats().bytes_in_use;
  Range resident, cached;
  {
    const std::unique_ptr<Model> model = create_model("vit_tiny", small_config());
    constexpr int kCalls = 600, kWarmUp = 150, kLargest = 24;
    for (int call = 0; call < kCalls; ++call) {
      std::thread([&] {
        const NumThreadsGuard one(1);
        const NoGradGuard no_grad;
        const Tensor images = zeros({1 + call * 7 % kLargest, 3, 32, 32});
        const Tensor logits = model->forward(images);
        CHECK(logits.size(0) == images.size(0));
      }).join();
      if (call < kWarmUp) continue;
      resident.add(resident_mib());
      cached.add(static_cast<double>(memory_stats().bytes_cached));
    }
  }
  CHECK(memory_stats().bytes_in_use == start);
  CHECK(cached.most == cached.least);  // every size has been seen: nothing new is asked of the system
  resident.check_flat(0.02);
  trim_memory();
  CHECK(memory_stats().bytes_cached <= static_cast<std::size_t>(default_num_threads()) << 20);  // the pool's own blocks
}

TEST_CASE("losses that are kept without their graphs hold their own numbers only") {
  const std::unique_ptr<Model> model = create_model("vit_tiny", small_config());
  const Tensor images = zeros({4, 3, 32, 32}), labels = Tensor::from_vector<std::int64_t>({0, 1, 2, 3});
  const std::size_t start = memory_stats().bytes_in_use;
  std::vector<Tensor> losses;
  for (int i = 0; i < 20; ++i) losses.push_back(cross_entropy(model->forward(images), labels).detach());
  CHECK(memory_stats().bytes_in_use - start <= 20 * 64);
  {
    const NoGradGuard no_grad;
    for (int i = 0; i < 20; ++i) losses.push_back(cross_entropy(model->forward(images), labels));
  }
  CHECK(memory_stats().bytes_in_use - start <= 40 * 64);
}

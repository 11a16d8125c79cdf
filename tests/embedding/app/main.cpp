// An application that brings libraries of its own: it trains a little, on many threads, and checks what polygrad
// promises to its host. Prints nothing but the reason of a failure.
#include <omp.h>
#include <polygrad/polygrad.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "own_libraries.h"

using namespace polygrad;

namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  ++failures;
}

int threads_of_this_process() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("Threads:", 0) == 0) return std::stoi(line.substr(8));
  }
  return -1;
}

// The same few steps of descent for every caller: the last weights, to be compared bit for bit.
std::vector<float> train() {
  Generator generator(7);
  Tensor x = randn({96, 160}, {.generator = &generator});
  Tensor w = randn({160, 64}, {.requires_grad = true, .generator = &generator});
  for (int step = 0; step < 10; ++step) {
    w.zero_grad();
    mean(square(tanh(matmul(x, w)))).backward();
    NoGradGuard no_grad;
    w = w - w.grad() * 0.1;
    w.set_requires_grad(true);
  }
  return w.to_vector<float>();
}

// Eight threads of the host, each asking for one thread of ours: no pool appears, OpenMP stays as the host set it.
void check_host_threads() {
  constexpr int kHostThreads = 8;
  constexpr int kHostOpenMp = 3;
  std::vector<std::vector<float>> weights(kHostThreads);
  std::atomic<int> most = 0, openmp_kept = 0, running = kHostThreads;
  std::vector<std::thread> host;
  for (int i = 0; i < kHostThreads; ++i) {
    host.emplace_back([&, i] {
      omp_set_num_threads(kHostOpenMp);
      NumThreadsGuard one(1);
      weights[i] = train();
      if (omp_get_max_threads() == kHostOpenMp) ++openmp_kept;
      --running;
    });
  }
  while (running > 0) {
    most = std::max(most.load(), threads_of_this_process());
    std::this_thread::yield();
  }
  for (std::thread& thread : host) thread.join();
  if (most > kHostThreads + 1)
    std::printf("%d threads for %d of the host and its main thread\n", most.load(), kHostThreads);
  expect(most <= kHostThreads + 1, "NumThreadsGuard(1) starts no thread of ours");
  expect(openmp_kept == kHostThreads, "the host's OpenMP thread count is left alone");
  for (const auto& other : weights) expect(other == weights[0], "the same bits in every host thread");
  expect(train() == weights[0], "the same bits with the pool");
}

void check_contract_lines() {
  Tensor x = randn({8, 16}), w = randn({16, 4}, {.requires_grad = true});
  Tensor loss = sum(tanh(matmul(x, w)));
  loss.backward();
  expect(w.grad().numel() == 64, "a gradient of the weight's shape");
  try {
    matmul(x, x);
    expect(false, "a ShapeError for (8, 16) x (8, 16)");
  } catch (const ShapeError& error) {
    expect(std::strstr(error.what(), "(8, 16)") != nullptr, "the error names the shapes");
  }
}

// A small vision transformer, evaluated and differentiated.
void check_model() {
  ModelConfig config;
  config.image_size = {{16, 16}};
  config.patch_size = {{4, 4}};
  config.embed_dim = 24;
  config.depth = 2;
  config.num_heads = 3;
  config.num_classes = 5;
  config.phi = {"x3"};
  const std::unique_ptr<Model> model = create_model("vit_tiny", config);
  Tensor loss = cross_entropy(model->forward(randn({2, 3, 16, 16})), Tensor::from_vector<std::int64_t>({1, 4}));
  loss.backward();
  expect(std::isfinite(loss.item<float>()), "the loss of a fresh model is finite");
}

// The host's Eigen is another copy, with other flags; both must work, and agree.
void check_own_libraries() {
  const int m = 33, k = 65, n = 17;
  Tensor a = randn({m, k}), b = randn({k, n});
  const std::vector<float> ours = matmul(a, b).to_vector<float>();
  const std::vector<float> theirs = own_product(a.to_vector<float>(), b.to_vector<float>(), m, k, n);
  double worst = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) worst = std::max(worst, std::fabs(double(ours[i]) - double(theirs[i])));
  expect(worst < 1e-4, "our product agrees with the host's Eigen");
  expect(own_json_round_trip(), "the host's JSON library works");
  expect(own_image_decodes(), "the host's stb_image works");
}

}  // namespace

int main() {
  check_host_threads();  // first: nothing has started the pool yet
  check_contract_lines();
  check_model();
  check_own_libraries();
  return failures == 0 ? 0 : 1;
}

// Proof that the headers which the CPU and CUDA share are device code: every elementwise map, every activation of
// attention, Philox and the normal numbers compile under nvcc, and on a GPU give what the CPU gives.
//
// `make cuda-compile` compiles and links it; run on a machine with a GPU, it compares and exits with 1 where they
// differ.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "engine/math.h"
#include "engine/philox.h"
#include "ops/kernels/attention_activation.h"
#include "ops/kernels/unary_functors.h"

using namespace polygrad;

namespace {

// In units in the last place: the compilers' own fma, division and square root are exact; f64 goes to two libraries.
constexpr double kFloatUlps = 4, kDoubleUlps = 8;

int failures = 0;

bool succeeded(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return true;
  std::printf("failed: %s: %s\n", what, cudaGetErrorString(status));
  ++failures;
  return false;
}

template <class Functor, class T>
struct MapOf {
  static __host__ __device__ void at(T x, T* out) {
    out[0] = Functor::value(x);
    out[1] = Functor::derivative(x, out[0]);
  }
};

template <class Activation, class T>
struct ActivationOf {
  static __host__ __device__ void at(T x, T* out) {
    out[0] = Activation::value(x);
    out[1] = Activation::derivative(x);
  }
};

template <class Evaluated, class T>
__global__ void evaluate(const T* x, T* out, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) Evaluated::at(x[i], out + 2 * i);
}

template <class T>
double ulps(T a, T b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const T scale = std::nextafter(std::fabs(b), INFINITY) - std::fabs(b);
  return std::fabs(static_cast<double>(a) - static_cast<double>(b)) / static_cast<double>(scale);
}

// Both sides at points from -10 to 10.
template <class Evaluated, class T>
void compare(const char* name, double allowed) {
  constexpr int kCount = 4001;
  std::vector<T> x(kCount), got(2 * kCount);
  for (int i = 0; i < kCount; ++i) x[i] = static_cast<T>((i - kCount / 2) * 0.005);
  T *device_x = nullptr, *device_out = nullptr;
  if (!succeeded(cudaMalloc(&device_x, kCount * sizeof(T)), "cudaMalloc")) return;
  if (!succeeded(cudaMalloc(&device_out, 2 * kCount * sizeof(T)), "cudaMalloc")) return;
  succeeded(cudaMemcpy(device_x, x.data(), kCount * sizeof(T), cudaMemcpyHostToDevice), "copy");
  evaluate<Evaluated, T><<<(kCount + 127) / 128, 128>>>(device_x, device_out, kCount);
  succeeded(cudaGetLastError(), name);
  succeeded(cudaMemcpy(got.data(), device_out, 2 * kCount * sizeof(T), cudaMemcpyDeviceToHost), name);
  cudaFree(device_x);
  cudaFree(device_out);
  double worst = 0;
  for (int i = 0; i < kCount; ++i) {
    T expected[2];
    Evaluated::at(x[i], expected);
    for (int j = 0; j < 2; ++j) {
      // Near a zero of the result the last place means little: 4e-7 of absolute error is always allowed.
      const double difference = std::fabs(static_cast<double>(got[2 * i + j]) - static_cast<double>(expected[j]));
      if (difference > 4e-7 || std::isnan(difference)) worst = std::fmax(worst, ulps(got[2 * i + j], expected[j]));
    }
  }
  if (worst > allowed) {
    std::printf("failed: %s (%zu bytes): %g ulp\n", name, sizeof(T), worst);
    ++failures;
  }
}

template <template <class, class> class Form, class Functor>
void compare_both(const char* name) {
  compare<Form<Functor, float>, float>(name, kFloatUlps);
  compare<Form<Functor, double>, double>(name, kDoubleUlps);
}

template <class... Maps>
void compare_maps(functors::List<Maps...>) {
  (compare_both<MapOf, Maps>(Maps::kName), ...);
}

template <class... Activations>
void compare_activations(attention_activation::List<Activations...>) {
  (compare_both<ActivationOf, Activations>(Activations::kName), ...);
}

struct Draw {
  std::uint32_t words[4];
  float normal[2];
};

__host__ __device__ Draw draw_at(std::uint32_t counter) {
  Draw result;
  const philox::Words words = philox::draw(0x0123456789abcdefull, philox::Domain::fill, counter, 1, 2, 3);
  for (int i = 0; i < 4; ++i) result.words[i] = words.w[i];
  math::normal_pair(words.w[0], words.w[1], &result.normal[0], &result.normal[1]);
  return result;
}

__global__ void draw_all(Draw* out, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) out[i] = draw_at(static_cast<std::uint32_t>(i));
}

void compare_draws() {
  constexpr int kCount = 65536;
  std::vector<Draw> got(kCount);
  Draw* device = nullptr;
  if (!succeeded(cudaMalloc(&device, kCount * sizeof(Draw)), "cudaMalloc")) return;
  draw_all<<<kCount / 128, 128>>>(device, kCount);
  succeeded(cudaMemcpy(got.data(), device, kCount * sizeof(Draw), cudaMemcpyDeviceToHost), "draws");
  cudaFree(device);
  double worst = 0;
  for (int i = 0; i < kCount; ++i) {
    const Draw expected = draw_at(static_cast<std::uint32_t>(i));
    if (std::memcmp(expected.words, got[i].words, sizeof expected.words) != 0) {
      std::printf("failed: the random words of counter %d\n", i);
      ++failures;
      return;
    }
    for (int j = 0; j < 2; ++j) worst = std::fmax(worst, ulps(got[i].normal[j], expected.normal[j]));
  }
  std::printf("normal numbers: at most %g ulp\n", worst);
  if (worst > 2) ++failures;
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("[skip] no GPU\n");
    return 0;
  }
  compare_maps(functors::All{});
  compare_activations(attention_activation::ActivationList{});
  compare_draws();
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}

// The loader: the same batches for any number of workers and from any place, exceptions with their sample, a clean end
// at any time.
#include "data/loader.h"

#include <doctest/doctest.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <set>
#include <thread>

#include "data/augment.h"
#include "data/decode.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/log.h"
#include "tests/support/isolation.h"

using namespace polygrad;
using doctest::Contains;

namespace {

// `size` samples of 1 x 2 x 2 random pixels; can fail, be slow, or give a label or a shape that does not belong.
class FakeDataset : public Dataset {
 public:
  explicit FakeDataset(std::int64_t size) : size_(size) {}
  std::int64_t failing = -1, bad_label = -1, odd_shape = -1;
  std::set<std::int64_t> bad_pictures;
  int sleep_ms = 0;
  mutable std::atomic<int> calls{0};

  std::int64_t size() const override { return size_; }
  std::int64_t label(std::int64_t index) const override { return index == bad_label ? 3 : index % 3; }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::string describe(std::int64_t index) const override { return "photo-" + std::to_string(index) + ".jpg"; }
  std::string fingerprint() const override { return "fake"; }
  Sample get(std::int64_t index, Generator& generator) const override {
    ++calls;
    // Later samples of a batch are done sooner, so that workers overtake each other.
    std::this_thread::sleep_for(std::chrono::microseconds(index % 7 * 50));
    std::this_thread::sleep_for(std::chrono::milliseconds(sleep_ms));
    if (bad_pictures.count(index))
      throw ImageError(ImageFault::truncated, "[image] " + describe(index) + ": truncated");
    if (index == failing) throw DataError("[image] cut short");
    const std::int64_t side = index == odd_shape ? 3 : 2;
    Tensor image = Tensor::empty(Shape{1, side, side});
    for (std::int64_t i = 0; i < image.numel(); ++i) {
      image.data<float>()[i] = static_cast<float>(index) + generator.uniform();
    }
    return {image, label(index)};
  }

 private:
  std::int64_t size_;
  std::vector<std::string> names_ = {"a", "b", "c"};
};

LoaderOptions options_of(std::int64_t batch_size, int workers) {
  LoaderOptions options;
  options.sampler.batch_size = batch_size;
  options.sampler.seed = 11;
  options.workers = workers;
  return options;
}

struct Seen {
  std::vector<float> pixels;
  std::vector<std::int64_t> labels, indices;
  std::vector<DataPosition> positions;
  bool operator==(const Seen&) const = default;
};

void add(Seen& seen, const Batch& batch) {
  for (const float x : batch.images.to_vector<float>()) seen.pixels.push_back(x);
  for (const std::int64_t x : batch.labels.to_vector<std::int64_t>()) seen.labels.push_back(x);
  seen.indices.insert(seen.indices.end(), batch.indices.begin(), batch.indices.end());
  seen.positions.push_back(batch.position);
}

Seen run(int workers, DataPosition start, std::int64_t epochs) {
  LoaderOptions options = options_of(4, workers);
  options.epochs = epochs;
  options.transform = [](const Tensor& image, Generator& generator) {
    Tensor result = image.clone();
    result.data<float>()[0] += generator.uniform();
    return result;
  };
  Loader loader(std::make_shared<FakeDataset>(22), options);
  loader.start(start);
  Seen seen;
  while (const auto batch = loader.next()) add(seen, *batch);
  return seen;
}

}  // namespace

TEST_CASE("the same batches for 0, 1 and 4 workers, over several epochs") {
  const Seen none = run(0, {}, 3);
  CHECK(none.positions.size() == 18);  // 22 samples in batches of 4: 6 an epoch
  CHECK(none.indices.size() == 66);
  CHECK(none == run(1, {}, 3));
  CHECK(none == run(4, {}, 3));
  // Each epoch has another order.
  CHECK(std::vector(none.indices.begin(), none.indices.begin() + 22) !=
        std::vector(none.indices.begin() + 22, none.indices.begin() + 44));
}

TEST_CASE("[alone] loaders without threads" * doctest::skip()) {
  const Seen expected = run(0, {}, 2);
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel, std::string_view text) { warnings.emplace_back(text); });
  testing::refuse_threads(true);
  CHECK(run(4, {}, 2) == expected);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("[loader] 0 of 4 workers started: ") == 0);
  // Room for two stacks, so for at most two workers.
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  testing::set_default_stack(400 * kMiB);
  testing::limit_further_memory(1000 * kMiB);
  CHECK(run(4, {}, 2) == expected);
  REQUIRE(warnings.size() == 2);
  CHECK(warnings[1].find(" of 4 workers started: ") != std::string::npos);
}

TEST_CASE("where the system refuses threads, batches are the same with fewer workers or none") {
  CHECK(testing::run_in_new_process("[alone] loaders without threads") == 0);
}

TEST_CASE("a sample's random numbers are those of its seed, epoch and index") {
  const auto noise = [](std::uint64_t seed, std::int64_t epoch) {
    LoaderOptions options = options_of(4, 0);
    options.sampler.seed = seed;
    options.sampler.shuffle = false;
    Loader loader(std::make_shared<FakeDataset>(4), options);
    loader.start({epoch, 0});
    std::vector<float> values;  // the first pixel of sample i is i + noise
    const auto pixels = loader.next()->images.to_vector<float>();
    for (std::size_t i = 0; i < 4; ++i) values.push_back(pixels[4 * i] - static_cast<float>(i));
    return values;
  };
  const auto base = noise(1, 0), again = noise(1, 0), other_epoch = noise(1, 1), other_seed = noise(2, 0);
  CHECK(base == again);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(base[i] != other_epoch[i]);
    CHECK(base[i] != other_seed[i]);
    CHECK(base[i] != base[(i + 1) % 4]);
  }
}

TEST_CASE("from the middle of an epoch: what an uninterrupted run has from there on") {
  const Seen whole = run(2, {0, 0}, 2), rest = run(3, {0, 4}, 2), next_epoch = run(0, {0, 6}, 1);
  REQUIRE(rest.positions.size() == 8);
  CHECK(rest.positions.front() == DataPosition{0, 4});
  CHECK(rest.pixels == std::vector(whole.pixels.begin() + 4 * 4 * 4, whole.pixels.end()));
  CHECK(next_epoch.positions.empty());  // the end of epoch 0 is where one epoch from 0 ends
}

TEST_CASE("a batch says where it is, and which is the epoch's last") {
  Loader loader(std::make_shared<FakeDataset>(10), options_of(4, 2));
  const Batch first = *loader.next(), second = *loader.next(), third = *loader.next();
  CHECK(first.images.shape() == Shape{4, 1, 2, 2});
  CHECK(third.images.shape() == Shape{2, 1, 2, 2});
  CHECK(third.labels.shape() == Shape{2});
  CHECK(second.offset == 4);
  CHECK(third.offset == 8);
  CHECK_FALSE(second.last);
  CHECK(third.last);
  CHECK_FALSE(loader.next().has_value());
  CHECK_FALSE(loader.next().has_value());
  loader.start();
  CHECK(loader.next()->indices == first.indices);
}

TEST_CASE("without end: epochs follow each other") {
  LoaderOptions options = options_of(4, 3);
  options.epochs = 0;
  Loader loader(std::make_shared<FakeDataset>(6), options);
  for (std::int64_t i = 0; i < 20; ++i) CHECK(loader.next()->position == DataPosition{i / 2, i % 2});
}

TEST_CASE("u8 images without a transform are scaled to [0, 1]") {
  class Bytes : public FakeDataset {
   public:
    using FakeDataset::FakeDataset;
    Sample get(std::int64_t, Generator&) const override {
      return {Tensor::from_vector<std::uint8_t>({0, 255}, Shape{1, 1, 2}), 0};
    }
  };
  Loader loader(std::make_shared<Bytes>(1), options_of(1, 0));
  CHECK(loader.next()->images.to_vector<float>() == std::vector<float>{0, 1});
}

#if defined(__SSE__)
TEST_CASE("a caller that flushes small numbers to zero gets the same bits, and keeps its state") {
  class Tiny : public FakeDataset {
   public:
    using FakeDataset::FakeDataset;
    Sample get(std::int64_t, Generator&) const override { return {full({1, 1, 1}, 1e-40), 0}; }
  };
  constexpr unsigned kFlushToZero = 0x8000;
  for (const int workers : {0, 1}) {
    Loader loader(std::make_shared<Tiny>(1), options_of(1, workers));
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | kFlushToZero);
    const auto batch = loader.next();
    const bool kept = (_mm_getcsr() & kFlushToZero) != 0;
    _mm_setcsr(before);
    CHECK(kept);
    CHECK(batch->images.to_vector<float>() == std::vector<float>{1e-40f});
  }
}
#endif

TEST_CASE("an exception arrives in its turn, with the sample's index and place") {
  for (const int workers : {0, 1, 4}) {
    const auto data = std::make_shared<FakeDataset>(20);
    data->failing = 13;
    LoaderOptions options = options_of(4, workers);
    options.sampler.shuffle = false;
    Loader loader(data, options);
    for (int i = 0; i < 3; ++i) CHECK(loader.next().has_value());  // samples 0 ... 11 are fine
    const char* text = "[image] cut short (sample 13: photo-13.jpg)";
    CHECK_THROWS_WITH_AS(loader.next(), text, DataError);
    CHECK_THROWS_WITH_AS(loader.next(), text, DataError);
    data->failing = -1;
    loader.start({0, 3});
    CHECK(loader.next()->indices.front() == 12);
  }
}

TEST_CASE("labels outside the classes, and images of another shape, are refused before a model sees them") {
  for (const int workers : {0, 2}) {
    const auto data = std::make_shared<FakeDataset>(8);
    LoaderOptions options = options_of(8, workers);
    options.sampler.shuffle = false;
    data->bad_label = 5;
    CHECK_THROWS_WITH_AS(Loader(data, options).next(),
                         "[loader] label 3 is outside the 3 classes (sample 5: photo-5.jpg)", DataError);
    data->bad_label = -1;
    data->odd_shape = 6;
    CHECK_THROWS_WITH_AS(
        Loader(data, options).next(),
        "[loader] photo-6.jpg: image (1, 3, 3), the batch's first is (1, 2, 2); expected one shape in a "
        "batch",
        DataError);
  }
}

TEST_CASE("a loader may end, or start anew, at any time") {
  const auto data = std::make_shared<FakeDataset>(4000);
  for (int taken = 0; taken < 6; ++taken) {
    Loader loader(data, options_of(2, 4));
    for (int i = 0; i < taken; ++i) CHECK(loader.next().has_value());
    loader.start({0, 100});
    CHECK(loader.next()->position == DataPosition{0, 100});
  }
  { const Loader never_started(data, options_of(2, 4)); }
  {
    Loader loader(data, options_of(2, 4));
    loader.start();
  }
  // The queue is bounded: few of the 4000 samples were asked for.
  CHECK(data->calls < 600);
}

TEST_CASE("the queue is bounded: workers wait for the consumer") {
  const auto data = std::make_shared<FakeDataset>(1000);
  LoaderOptions options = options_of(2, 2);
  options.prefetch = 3;
  Loader loader(data, options);
  CHECK(loader.next().has_value());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(data->calls <= 2 * (1 + 6));  // the one taken, and six batches in the queue
}

TEST_CASE("waiting is measured") {
  const auto data = std::make_shared<FakeDataset>(4);
  data->sleep_ms = 10;
  Loader loader(data, options_of(4, 0));
  CHECK(loader.wait_seconds() == 0);
  CHECK(loader.next().has_value());
  CHECK(loader.wait_seconds() >= 0.04);

  Loader ahead(data, options_of(4, 1));
  ahead.start();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(ahead.next().has_value());
  CHECK(ahead.wait_seconds() < 0.04);  // it was ready
}

TEST_CASE("ranks get disjoint parts; an empty part still has the images' shape") {
  LoaderOptions options = options_of(2, 0);
  options.sampler.world = 2;
  options.sampler.rank = 0;
  Loader loader(std::make_shared<FakeDataset>(5), options);
  CHECK(loader.next()->size() == 2);
  const Batch last = *loader.next();  // one sample is left; it is rank 1's
  CHECK(last.size() == 0);
  CHECK(last.images.shape() == Shape{0, 1, 2, 2});
}

TEST_CASE("options without sense") {
  const auto data = std::make_shared<FakeDataset>(4);
  CHECK_THROWS_AS(Loader(nullptr, options_of(1, 0)), ValueError);
  CHECK_THROWS_AS(Loader(data, options_of(1, -1)), ValueError);
  CHECK_THROWS_AS(Loader(std::make_shared<FakeDataset>(0), options_of(1, 0)), ValueError);
  CHECK_THROWS_AS(Subset(data, {0, 4}), IndexError);
  const Subset subset(data, {3, 1});
  CHECK(subset.size() == 2);
  CHECK(subset.describe(0) == "photo-3.jpg");
  CHECK(subset.label(1) == 1);
  CHECK(subset.fingerprint() != Subset(data, {1, 3}).fingerprint());
}

TEST_CASE("a picture that can't be used stops, is replaced by its neighbour, or is dropped; each is reported once") {
  auto data = std::make_shared<FakeDataset>(20);
  data->bad_pictures = {3, 4, 19};
  std::vector<std::string> warnings;
  std::mutex mutex;
  set_log_sink([&](LogLevel, std::string_view text) {
    const std::lock_guard<std::mutex> lock(mutex);
    warnings.emplace_back(text);
  });
  for (const int workers : {0, 3}) {
    CAPTURE(workers);
    LoaderOptions options = options_of(6, workers);
    options.epochs = 2;
    const auto walk = [&](Loader& loader) {
      std::vector<std::int64_t> indices, counts;
      while (const std::optional<Batch> batch = loader.next()) {
        indices.insert(indices.end(), batch->indices.begin(), batch->indices.end());
        counts.push_back(batch->size());
        for (std::int64_t i = 0; i < batch->size(); ++i) {  // the picture is the index's
          CHECK(std::floor(batch->images.to_vector<float>()[static_cast<std::size_t>(4 * i)]) ==
                static_cast<float>(batch->indices[static_cast<std::size_t>(i)]));
          CHECK(batch->labels.to_vector<std::int64_t>()[static_cast<std::size_t>(i)] ==
                batch->indices[static_cast<std::size_t>(i)] % 3);
        }
        CHECK(batch->images.size(0) == batch->size());
        CHECK(batch->labels.size(0) == batch->size());
      }
      return std::make_pair(indices, counts);
    };
    Loader stopping(data, options);
    CHECK_THROWS_WITH_AS(walk(stopping), Contains(": truncated"), ImageError);

    warnings.clear();
    options.bad_sample = BadSample::replace;
    Loader replacing(data, options);
    const auto [replaced, full] = walk(replacing);
    CHECK(full == std::vector<std::int64_t>{6, 6, 6, 2, 6, 6, 6, 2});
    CHECK(std::count(replaced.begin(), replaced.end(), 5) == 6);  // itself, for 3 and for 4, in each epoch
    CHECK(std::count(replaced.begin(), replaced.end(), 0) == 4);  // for 19
    CHECK(replacing.bad_samples() == 3);
    CHECK(warnings.size() == 3);

    options.bad_sample = BadSample::drop;
    Loader dropping(data, options);
    const auto [kept, counts] = walk(dropping);
    CHECK(kept.size() == 34);
    CHECK(counts.size() == 8);
    CHECK(dropping.bad_samples() == 3);
  }
  for (std::int64_t i = 0; i < 20; ++i) data->bad_pictures.insert(i);
  LoaderOptions options = options_of(6, 0);
  options.bad_sample = BadSample::replace;
  Loader none(data, options);
  CHECK_THROWS_WITH_AS(none.next(), Contains("none of the 20 pictures can be used"), DataError);
  options.bad_sample = BadSample::drop;
  Loader empty(data, options);
  CHECK(empty.next()->size() == 0);
  set_log_sink({});
}

TEST_CASE("repeated augmentation: several views of a sample in a row, each with numbers of its own") {
  const auto data = std::make_shared<FakeDataset>(300);
  std::vector<float> pixels[2];
  for (const int workers : {0, 2}) {
    LoaderOptions options = options_of(32, workers);
    options.sampler.repeats = 3;
    Loader loader(data, options);
    CHECK(loader.sampler().samples_per_epoch() == 256);
    std::vector<std::int64_t> indices;
    std::vector<float>& seen = pixels[workers / 2];
    while (const std::optional<Batch> batch = loader.next()) {
      indices.insert(indices.end(), batch->indices.begin(), batch->indices.end());
      for (const float x : batch->images.to_vector<float>()) seen.push_back(x);
    }
    REQUIRE(indices.size() == 256);
    for (std::size_t i = 0; i + 2 < 256; i += 3) {
      CHECK((indices[i] == indices[i + 1] && indices[i] == indices[i + 2]));
      CHECK((seen[4 * i] != seen[4 * i + 4] && seen[4 * i + 4] != seen[4 * i + 8]));
    }
    CHECK(std::set<std::int64_t>(indices.begin(), indices.end()).size() == 86);
  }
  CHECK(pixels[0] == pixels[1]);
  // The first view is the one that an epoch without repeats draws.
  Loader plain(data, options_of(300, 0));
  const Batch all = *plain.next();
  const auto place =
      std::find(all.indices.begin(), all.indices.end(), plain.sampler().order(0)[0]) - all.indices.begin();
  CHECK(all.images.to_vector<float>()[static_cast<std::size_t>(4 * place)] == pixels[0][0]);
}

#include "apps/bench/step_data.h"

#include "data/augment.h"
#include "data/catalog.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad::bench {
namespace {

constexpr std::uint64_t kImageSeed = 1;
constexpr std::int64_t kBatches = 10;
constexpr double kMean = 0.5, kStddev = 0.25;

// Images of noise, made when they are asked for: nothing is read, and nothing is kept.
class NoiseImages : public Dataset {
 public:
  NoiseImages(std::int64_t size, std::int64_t image, std::int64_t classes) : size_(size), image_(image) {
    for (std::int64_t c = 0; c < classes; ++c) names_.push_back(format("{}", c));
  }
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index, Generator&) const override {
    const std::int64_t number = label(index);
    Generator generator(derive_seed(kImageSeed, static_cast<std::uint64_t>(index)));
    Tensor image = Tensor::empty({3, image_, image_}, {.dtype = DType::u8});
    std::uint8_t* pixel = image.data<std::uint8_t>();
    std::uint32_t word = 0;
    for (std::int64_t i = 0; i < image.numel(); ++i, word >>= 8) {
      if (i % 4 == 0) word = generator.next_u32();
      pixel[i] = static_cast<std::uint8_t>(word & 0xFF);
    }
    return {image, number};
  }
  std::int64_t label(std::int64_t index) const override {
    if (index < 0 || index >= size_) throw IndexError(format("[vit_step] image {} of {}", index, size_));
    return Generator(derive_seed(kImageSeed, static_cast<std::uint64_t>(index), 1)).integer(0, classes());
  }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::string describe(std::int64_t index) const override { return format("generated image {}", index); }
  std::string fingerprint() const override { return format("{} images of noise, {} x {}", size_, image_, image_); }

 private:
  std::int64_t size_, image_;
  std::vector<std::string> names_;
};

std::unique_ptr<Loader> endless_loader(const std::shared_ptr<const Dataset>& train, std::int64_t batch,
                                       const std::vector<double>& mean, const std::vector<double>& stddev) {
  // One after another in the training thread: the steps are timed without them, and no worker takes a core away.
  return std::make_unique<Loader>(train, LoaderOptions{.sampler = {.batch_size = batch},
                                                       .epochs = 0,
                                                       .transform = ImageTransform({.mean = mean, .stddev = stddev})});
}

}  // namespace

StepData generated_data(std::int64_t image, std::int64_t classes, std::int64_t batch) {
  const auto train = std::make_shared<NoiseImages>(kBatches * batch, image, classes);
  return {train, endless_loader(train, batch, {kMean}, {kStddev}), 3, image, image};
}

StepData idx_data(const std::string& folder, std::int64_t batch) {
  const DataParts parts = open_data({.name = "idx", .root = folder});
  return {parts.train, endless_loader(parts.train, batch, parts.mean, parts.stddev), parts.channels, parts.height,
          parts.width};
}

}  // namespace polygrad::bench

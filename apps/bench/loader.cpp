// polygrad_bench loader: how many pictures a second each stage of the input side prepares, on one core, and the whole
// loader with its workers.
#include <algorithm>
#include <chrono>
#include <functional>

#include "apps/bench/bench.h"
#include "apps/bench/report.h"
#include "data/augment.h"
#include "data/image_folder.h"
#include "data/loader.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/parallel.h"

namespace polygrad::bench {
namespace {

// Pictures a second of the fastest of some passes over `count` of them.
double rate(int passes, std::int64_t count, const std::function<void(std::int64_t)>& work) {
  double best = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < count; ++i) work(i);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::max(best, static_cast<double>(count) / std::max(seconds, 1e-9));
  }
  return best;
}

// `count` samples spread over the whole set.
std::vector<std::int64_t> spread(std::int64_t size, std::int64_t count) {
  std::vector<std::int64_t> chosen;
  for (std::int64_t i = 0; i < std::min(size, count); ++i) chosen.push_back(i * size / std::min(size, count));
  return chosen;
}

}  // namespace

std::string run_loader(const LoaderBenchOptions& options, const Common& common) {
  if (options.data.empty()) throw ConfigError("[loader] --data DIR: name a folder of pictures");
  ImageFolderOptions folder;
  folder.name = "bench";
  const ImageParts parts = open_image_folder(find_image_root(options.data, "tiny-imagenet-200"), folder);
  const auto some = std::make_shared<Subset>(parts.train, spread(parts.train->size(), options.samples));
  const std::int64_t count = some->size();
  const int passes = std::clamp(common.pairs, 1, 5);

  std::vector<std::string> files(static_cast<std::size_t>(count));
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  for (std::int64_t i = 0; i < count; ++i) files[at(i)] = read_image_bytes(some->describe(i));  // warms the disk cache
  std::vector<Tensor> pictures(files.size()), resized(files.size());
  std::vector<Tensor> done(files.size());

  AugmentOptions size_only{.height = options.image, .width = options.image, .resized_crop = true};
  AugmentOptions rest{.flip = true,
                      .mean = {0.485, 0.456, 0.406},
                      .stddev = {0.229, 0.224, 0.225},
                      .randaugment = true,
                      .random_erasing = 0.25};
  AugmentOptions all = rest;
  all.height = all.width = options.image;
  all.resized_crop = true;
  const ImageTransform to_size(size_only), augment(rest);
  const auto generator = [](std::int64_t i) { return Generator(derive_seed(1, 0, static_cast<std::uint64_t>(i))); };

  const double read = rate(passes, count, [&](std::int64_t i) { files[at(i)] = read_image_bytes(some->describe(i)); });
  const double decode =
      rate(passes, count, [&](std::int64_t i) { pictures[at(i)] = decode_image(files[at(i)], some->describe(i)); });
  const double resize = rate(passes, count, [&](std::int64_t i) {
    Generator own = generator(i);
    resized[at(i)] = to_size.pixels(pictures[at(i)], own);
  });
  const double augmented = rate(passes, count, [&](std::int64_t i) {
    Generator own = generator(i);
    done[at(i)] = augment(resized[at(i)], own);
  });

  // The whole: files to batches, as training takes them. One pass warms the workers up.
  Loader loader(some, {.sampler = {.batch_size = std::min(options.batch, count)},
                       .workers = options.workers,
                       .epochs = 1,
                       .transform = ImageTransform(all)});
  const NumThreadsGuard one_thread(1);
  double batches = 0;
  for (int pass = 0; pass < passes; ++pass) {
    loader.start({pass, 0});
    const auto begin = std::chrono::steady_clock::now();
    while (loader.next()) {
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    batches = std::max(batches, static_cast<double>(count) / std::max(seconds, 1e-9));
  }
  say(common.quiet, format("{} pictures, JPEG by {}: a core reads {:.0f} a second, decodes {:.0f}, crops and resizes "
                           "{:.0f} to {} x {}, augments {:.0f}; {} workers make batches of {:.0f}",
                           count, jpeg_decoder_name(), read, decode, resize, options.image, options.image, augmented,
                           options.workers, batches));
  return Report("loader")
      .add("images", count)
      .add("image", options.image)
      .add("workers", static_cast<std::int64_t>(options.workers))
      .add("decoder", jpeg_decoder_name())
      .add("read_per_s", read)
      .add("decode_per_s", decode)
      .add("resize_per_s", resize)
      .add("augment_per_s", augmented)
      .add("batch_per_s", batches)
      .line();
}

}  // namespace polygrad::bench

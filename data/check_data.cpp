#include "data/check_data.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <unordered_map>

#include "data/decode.h"
#include "engine/format.h"
#include "engine/parallel.h"

namespace polygrad {

namespace {

constexpr std::size_t kListed = 20;  // of each kind of finding
constexpr std::int64_t kSamplesPerChunk = 32;

struct Look {
  std::int64_t height = 0, width = 0;
  std::uint64_t hash = 0;
  double sum[3] = {}, squares[3] = {};
  int fault = -1;
  std::string message;
};

void look_at(const Dataset& dataset, std::int64_t index, Look& look) {
  try {
    Generator generator;
    const Sample sample = dataset.get(index, generator);
    if (sample.tokens.defined()) {
      const std::vector<std::int64_t> ids = sample.tokens.to_vector<std::int64_t>();
      const std::int64_t towers = sample.tokens.size(0);
      look.hash = content_hash(ids.data(), ids.size() * sizeof ids[0], content_hash(&towers, sizeof towers));
      return;
    }
    const Tensor image = sample.image.contiguous();
    look.height = image.size(1);
    look.width = image.size(2);
    const std::int64_t channels = std::min<std::int64_t>(image.size(0), 3), count = look.height * look.width;
    if (image.dtype() != DType::u8) return;
    const std::uint8_t* pixels = image.data<std::uint8_t>();
    const std::int64_t shape[2] = {look.height, look.width};
    look.hash = content_hash(pixels, static_cast<std::size_t>(image.numel()), content_hash(shape, sizeof shape));
    for (std::int64_t c = 0; c < channels; ++c, pixels += count) {
      std::uint64_t sum = 0, squares = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        sum += pixels[i];
        squares += static_cast<std::uint64_t>(pixels[i]) * pixels[i];
      }
      look.sum[c] = static_cast<double>(sum) / 255;
      look.squares[c] = static_cast<double>(squares) / (255.0 * 255.0);
    }
  } catch (const ImageError& error) {
    look.fault = static_cast<int>(error.fault());
    look.message = error.what();
  }
}

struct Part {
  const char* name;
  std::shared_ptr<const Dataset> dataset;
  std::vector<std::int64_t> counts = {};
  std::vector<Look> looks = {};
};

std::string sizes_text(const std::vector<Part>& parts) {
  std::vector<std::int64_t> heights, widths;
  for (const Part& part : parts) {
    for (const Look& look : part.looks) {
      if (look.fault >= 0) continue;
      heights.push_back(look.height);
      widths.push_back(look.width);
    }
  }
  if (heights.empty()) return "sizes: no picture can be used\n";
  std::sort(heights.begin(), heights.end());
  std::sort(widths.begin(), widths.end());
  if (heights.front() == heights.back() && widths.front() == widths.back()) {
    return format("sizes: all {} x {} (width x height)\n", widths.front(), heights.front());
  }
  return format("sizes: widths {} to {} (median {}), heights {} to {} (median {})\n", widths.front(), widths.back(),
                widths[widths.size() / 2], heights.front(), heights.back(), heights[heights.size() / 2]);
}

std::string class_table(const std::vector<Part>& parts, const std::vector<std::string>& names) {
  std::size_t width = 5;
  for (const std::string& name : names) width = std::max(width, name.size());
  std::string text = format("{:<{}}", "class", width);
  for (const Part& part : parts) text += format("{:>8}", part.name);
  text += "\n";
  for (std::size_t c = 0; c < names.size(); ++c) {
    text += format("{:<{}}", names[c], width);
    for (const Part& part : parts) text += format("{:>8}", c < part.counts.size() ? part.counts[c] : 0);
    text += "\n";
  }
  return text;
}

std::string listed(const std::vector<std::string>& lines) {
  std::string text;
  for (std::size_t i = 0; i < std::min(lines.size(), kListed); ++i) text += "  " + lines[i] + "\n";
  if (lines.size() > kListed) text += format("  ... and {} more\n", lines.size() - kListed);
  return text;
}

// Finds pictures with the same pixels; fills the counts and returns a line for each pair.
std::vector<std::string> find_twins(const std::vector<Part>& parts, DataCheck& check) {
  std::unordered_map<std::uint64_t, std::pair<std::size_t, std::int64_t>> seen;  // hash -> part, index
  std::vector<std::string> across, same;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    for (std::size_t i = 0; i < parts[p].looks.size(); ++i) {
      const Look& look = parts[p].looks[i];
      if (look.fault >= 0 || look.hash == 0) continue;
      const auto index = static_cast<std::int64_t>(i);
      const auto [found, added] = seen.try_emplace(look.hash, p, index);
      if (added) continue;
      const Part &here = parts[p], &there = parts[found->second.first];
      const bool one_part = p == found->second.first;
      const bool one_class = here.dataset->label(index) == there.dataset->label(found->second.second);
      const std::string line =
          format("{} = {}", here.dataset->describe(index), there.dataset->describe(found->second.second));
      if (!one_part) {
        ++check.other_part;
      } else {
        ++(one_class ? check.same_class : check.other_class);
      }
      (one_part && one_class ? same : across).push_back(line);
    }
  }
  across.insert(across.end(), same.begin(), same.end());
  return across;
}

void measure(const std::vector<Look>& looks, std::int64_t channels, DataCheck& check) {
  double pixels = 0, sum[3] = {}, squares[3] = {};
  for (const Look& look : looks) {
    if (look.fault >= 0) continue;
    pixels += static_cast<double>(look.height * look.width);
    for (int c = 0; c < 3; ++c) {
      sum[c] += look.sum[c];
      squares[c] += look.squares[c];
    }
  }
  for (std::int64_t c = 0; c < std::min<std::int64_t>(channels, 3) && pixels > 0; ++c) {
    const double mean = sum[c] / pixels;
    check.mean.push_back(mean);
    check.stddev.push_back(std::sqrt(std::max(0.0, squares[c] / pixels - mean * mean)));
  }
}

}  // namespace

DataCheck check_data(const DataParts& data) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Part> parts = {{"train", data.train}, {"val", data.val}, {"test", data.test}};
  std::erase_if(parts, [](const Part& part) { return !part.dataset; });
  DataCheck check;
  for (Part& part : parts) {
    part.counts = class_counts(*part.dataset);
    part.looks.resize(static_cast<std::size_t>(part.dataset->size()));
    parallel_for(0, part.dataset->size(), kSamplesPerChunk, [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t i = first; i < end; ++i) look_at(*part.dataset, i, part.looks[static_cast<std::size_t>(i)]);
    });
    check.pictures += part.dataset->size();
    for (const Look& look : part.looks) {
      if (look.fault < 0) continue;
      ++check.bad_of[look.fault];
      check.bad.push_back(look.message);
    }
  }
  const bool tokens = data.towers > 0;
  const char* what = tokens ? "sequences" : "pictures";
  if (!tokens) measure(parts.front().looks, data.channels, check);
  const std::vector<std::string> twins = find_twins(parts, check);

  std::string& text = check.report;
  text += class_table(parts, data.class_names);
  for (const Part& part : parts) {
    const auto [least, most] = std::minmax_element(part.counts.begin(), part.counts.end());
    text += format("{}: {} {} of {} classes, {} to {} a class\n", part.name, part.dataset->size(), what,
                   part.counts.size(), *least, *most);
  }
  if (tokens) {
    text += data.report;
  } else {
    text += sizes_text(parts);
    text += "mean and standard deviation of the training pictures:";
    for (const double value : check.mean) text += format(" {:.4f}", value);
    text += ";";
    for (const double value : check.stddev) text += format(" {:.4f}", value);
    text += "\n";
  }
  text += format("notes: {}\n", data.notes.size()) + listed(data.notes);
  text += format("foreign files: {}; hidden entries passed over: {}\n", data.foreign.size(), data.hidden);
  text += listed(data.foreign);
  text += format("same {} as another: {} in the same class, {} under another class, {} in another part\n",
                 tokens ? "tokens" : "pixels", check.same_class, check.other_class, check.other_part);
  text += listed(twins);
  text += format("can't be used: {} of {}", check.bad.size(), check.pictures);
  for (int fault = 0; fault < 6; ++fault) {
    if (check.bad_of[fault] > 0)
      text += format(", {} {}", check.bad_of[fault], to_string(static_cast<ImageFault>(fault)));
  }
  text += "\n";
  for (const std::string& message : check.bad) text += "  " + message + "\n";  // all: they are to be mended
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  text += format("time: {:.1f} s with {} threads, {:.0f} {}/s; JPEG by {}\n", seconds, num_threads(),
                 static_cast<double>(check.pictures) / std::max(seconds, 1e-9), what, jpeg_decoder_name());
  return check;
}

}  // namespace polygrad

#include "apps/training/pictures.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "data/mix.h"
#include "data/png.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

namespace {

Tensor white(std::int64_t height, std::int64_t width) {
  TensorOptions options;
  options.dtype = DType::u8;
  Tensor picture = Tensor::empty(Shape{3, height, width}, options);
  std::memset(picture.data<std::uint8_t>(), 255, static_cast<std::size_t>(picture.numel()));
  return picture;
}

void fill(Tensor& picture, std::int64_t top, std::int64_t left, std::int64_t height, std::int64_t width,
          const std::uint8_t (&color)[3]) {
  for (std::int64_t c = 0; c < 3; ++c) {
    for (std::int64_t y = top; y < top + height; ++y) {
      std::uint8_t* row = picture.data<std::uint8_t>() + (c * picture.size(1) + y) * picture.size(2) + left;
      std::fill(row, row + width, color[c]);
    }
  }
}

// What a batch shows as f32 (B, C, H, W): its images, or the pictures whose pixels its tokens are.
Tensor images_of(const Tensor& input, const Preprocessing& preprocessing) {
  if (!preprocessing.of_tokens()) return input;
  if (preprocessing.vocabulary != "grey") {
    throw ConfigError(
        format("[contact_sheet] the samples are tokens of '{}', no pictures; expected a task of pictures, such as "
               "lra_image or lra_pathfinder",
               preprocessing.vocabulary));
  }
  const std::int64_t side = std::llround(std::sqrt(static_cast<double>(preprocessing.length)));
  Tensor pictures = Tensor::empty(Shape{input.size(0), 1, side, side});
  const std::int64_t* ids = input.data<std::int64_t>();
  std::transform(ids, ids + input.numel(), pictures.data<float>(),
                 [](std::int64_t id) { return static_cast<float>(id) / 255; });
  return pictures;
}

// A colour from 0 to 1 of picture `i` of (B, C, H, W), before it was normalised.
double color_of(const Tensor& pictures, const Preprocessing& preprocessing, std::int64_t i, std::int64_t channel,
                std::int64_t y, std::int64_t x) {
  const std::int64_t from = std::min(channel, pictures.size(1) - 1);
  const auto number = [&](const std::vector<double>& numbers, double otherwise) {
    return numbers.empty() ? otherwise : numbers[numbers.size() == 1 ? 0 : static_cast<std::size_t>(from)];
  };
  const float* plane = pictures.data<float>() + (i * pictures.size(1) + from) * pictures.size(2) * pictures.size(3);
  const auto value = static_cast<double>(plane[y * pictures.size(3) + x]);
  return std::clamp(value * number(preprocessing.stddev, 1) + number(preprocessing.mean, 0), 0.0, 1.0);
}

// Paints (3, height, width) dots of `color(channel, y, x)`, 0 to 1, each `scale` pixels wide.
template <typename Color>
void paint(Tensor& sheet, std::int64_t top, std::int64_t left, std::int64_t height, std::int64_t width,
           std::int64_t scale, const Color& color) {
  for (std::int64_t c = 0; c < 3; ++c) {
    for (std::int64_t y = 0; y < height * scale; ++y) {
      std::uint8_t* row = sheet.data<std::uint8_t>() + (c * sheet.size(1) + top + y) * sheet.size(2) + left;
      for (std::int64_t x = 0; x < width * scale; ++x) {
        row[x] = static_cast<std::uint8_t>(std::lround(255 * color(c, y / scale, x / scale)));
      }
    }
  }
}

// The text's beginning that fits into `width` pixels.
std::string fitting(std::string text, std::int64_t width, std::int64_t scale) {
  while (!text.empty() && text_width(text) * scale > width) text.pop_back();
  return text;
}

// Cells from one number at an axis to the next: 1, 2 or 5 times a power of ten classes, and room for the number.
std::int64_t tick_distance(std::int64_t cell, std::int64_t group) {
  constexpr std::int64_t kRoom = 40;
  for (std::int64_t power = 1;; power *= 10) {
    for (const std::int64_t classes : {power, 2 * power, 5 * power}) {
      if (classes % group == 0 && classes / group * cell >= kRoom) return classes / group;
    }
    if (power > (std::int64_t{1} << 40)) return std::int64_t{1} << 40;  // a group that divides none of them
  }
}

}  // namespace

Tensor confusion_picture(const std::vector<std::int64_t>& counts, const std::vector<std::string>& names) {
  const auto classes = static_cast<std::int64_t>(names.size());
  constexpr std::int64_t kMargin = 8, kSide = 640, kNamed = 40, kLargestCell = 32, kTitle = 2 * kTextHeight, kGap = 4;
  constexpr std::int64_t kLongestName = 200, kLetters = 7, kSmallestNumberedCell = 28;
  constexpr std::int64_t kMostCells = 4096;  // a side; of more classes, neighbours share a cell
  const std::int64_t group = std::max<std::int64_t>(1, (classes + kMostCells - 1) / kMostCells);
  const std::int64_t cells = (classes + group - 1) / group;
  const std::int64_t cell = std::clamp<std::int64_t>(kSide / std::max<std::int64_t>(cells, 1), 1, kLargestCell);
  const bool named = classes <= kNamed && cell >= kTextHeight, numbered = named && cell >= kSmallestNumberedCell;
  // What stands beside a row: each class's number and name, or a number now and then.
  const std::int64_t every = named ? 1 : tick_distance(cell, group);
  const auto label_of = [&](std::int64_t row) {
    return named ? format("{} {}", row, names[static_cast<std::size_t>(row)]) : format("{}", row * group);
  };
  std::int64_t left = kMargin;
  for (std::int64_t row = 0; row < cells; row += every)
    left = std::max(left, kMargin + kGap + std::min<std::int64_t>(text_width(label_of(row)), kLongestName));
  const std::int64_t side = cells * cell, top = kMargin + kTitle + kTextHeight;
  const std::string title =
      format("rows: labels, columns: predicted, {}", numbered ? "numbers: percent of the row" : "dark: often");
  Tensor picture = white(top + side + kMargin, std::max(left + side, kMargin + text_width(title)) + kMargin);
  draw_text(picture, title, kMargin, kMargin, 1, 0, 0, 0);
  for (std::int64_t at = 0; at < cells; at += every) {
    draw_text(picture, fitting(label_of(at), kLongestName, 1), top + at * cell + (cell - kLetters) / 2, kMargin, 1, 0,
              0, 0);
    const std::string number = format("{}", at * group);
    draw_text(picture, number, top - kTextHeight, left + at * cell + (named ? (cell - text_width(number)) / 2 : 0), 1,
              0, 0, 0);
  }
  for (std::int64_t y = 0; y < cells; ++y) {
    std::vector<std::int64_t> row(static_cast<std::size_t>(cells));
    std::int64_t sum = 0;
    for (std::int64_t label = y * group; label < std::min((y + 1) * group, classes); ++label) {
      for (std::int64_t predicted = 0; predicted < classes; ++predicted) {
        const std::int64_t count = counts[static_cast<std::size_t>(label * classes + predicted)];
        row[static_cast<std::size_t>(predicted / group)] += count;
        sum += count;
      }
    }
    for (std::int64_t x = 0; x < cells; ++x) {
      // The root makes small shares visible; a class without samples is grey.
      const double share =
          sum > 0 ? static_cast<double>(row[static_cast<std::size_t>(x)]) / static_cast<double>(sum) : 0;
      const double shade = std::sqrt(share);
      const auto light = static_cast<std::uint8_t>(std::lround(255 * (1 - shade)));
      const auto blue = static_cast<std::uint8_t>(std::lround(255 - 115 * shade));
      if (sum > 0) {
        fill(picture, top + y * cell, left + x * cell, cell, cell, {light, light, blue});
      } else {
        fill(picture, top + y * cell, left + x * cell, cell, cell, {230, 230, 230});
      }
      if (!numbered || share == 0) continue;
      const std::string number = share < 0.005 ? "<1" : format("{:.0f}", 100 * share);
      const int ink = light < 128 ? 255 : 0;
      draw_text(picture, number, top + y * cell + (cell - kLetters) / 2,
                left + x * cell + (cell - text_width(number)) / 2, 1, ink, ink, ink);
    }
  }
  // The border, where the cells end.
  for (const std::int64_t y : {top - 1, top + side}) fill(picture, y, left - 1, 1, side + 2, {0, 0, 0});
  for (const std::int64_t x : {left - 1, left + side}) fill(picture, top, x, side, 1, {0, 0, 0});
  return picture;
}

Tensor contact_sheet(const Config& config, const Experiment& experiment, std::int64_t images) {
  Loader loader(experiment.train, training_loader(config, experiment));
  std::optional<Batch> batch = loader.next();
  if (!batch || batch->size() == 0) throw DataError("[contact_sheet] no training picture");
  if (images < 1) throw ValueError(format("[contact_sheet] {} images; expected at least 1", images));
  const std::int64_t size = batch->size();
  Tensor pictures = images_of(batch->input(), experiment.preprocessing);
  MixPlan plan;
  if (experiment.mix.enabled()) {
    Generator generator = mix_generator(config.seed("seed"), 0, 0);
    plan = draw_mix(experiment.mix, pictures.size(2), pictures.size(3), generator);
    mix_images(pictures, plan);
  }
  const std::int64_t shown = std::min(images, size);
  const std::int64_t height = pictures.size(2), width = pictures.size(3);
  constexpr std::int64_t kGap = 6, kLines = 2;
  const std::int64_t smallest_width = experiment.preprocessing.of_tokens() ? 160 : 96;  // dashes of two pixels
  const std::int64_t scale = std::max<std::int64_t>(1, (smallest_width + width - 1) / width);
  const std::int64_t columns = std::min<std::int64_t>(8, shown), rows = (shown + columns - 1) / columns;
  const std::int64_t cell_width = width * scale + kGap, cell_height = height * scale + kLines * kTextHeight + kGap;
  Tensor sheet = white(rows * cell_height + kGap, columns * cell_width + kGap);

  const std::int64_t* labels = batch->labels.data<std::int64_t>();
  const std::vector<std::string>& names = experiment.train->class_names();
  for (std::int64_t i = 0; i < shown; ++i) {
    const std::int64_t top = kGap + i / columns * cell_height, left = kGap + i % columns * cell_width;
    paint(sheet, top, left, height, width, scale, [&](std::int64_t c, std::int64_t y, std::int64_t x) {
      return color_of(pictures, experiment.preprocessing, i, c, y, x);
    });
    const std::string& own = names[static_cast<std::size_t>(labels[i])];
    const std::string& other = names[static_cast<std::size_t>(labels[size - 1 - i])];
    const bool mixed = plan.lambda < 1 && own != other;
    const std::int64_t text_top = top + height * scale + 2;
    const std::string first = mixed ? format("{:.2f} {}", plan.lambda, own) : own;
    draw_text(sheet, fitting(first, width * scale, 1), text_top, left, 1, 0, 0, 0);
    if (mixed) {
      const std::string second = format("{:.2f} {}", 1 - plan.lambda, other);
      draw_text(sheet, fitting(second, width * scale, 1), text_top + kTextHeight, left, 1, 0, 0, 0);
    }
  }
  return sheet;
}

Tensor attention_overlay(const Tensor& input, const Tensor& values, const Preprocessing& preprocessing) {
  const Tensor pictures = images_of(input, preprocessing);
  const std::int64_t count = pictures.size(0), height = pictures.size(2), width = pictures.size(3);
  if (values.dim() != 3 || values.size(0) != count || height % values.size(1) != 0 || width % values.size(2) != 0) {
    throw ShapeError(format("[attention_overlay] {} pictures {} x {}, values {}; expected (pictures, rows, columns)",
                            count, height, width, to_string(values.shape())));
  }
  const std::int64_t cells = values.size(1) * values.size(2);
  constexpr std::int64_t kGap = 6, kSmallestWidth = 128;
  const std::int64_t scale = std::max<std::int64_t>(1, (kSmallestWidth + width - 1) / width);
  const std::int64_t cell_width = width * scale + kGap, cell_height = 2 * height * scale + 2 * kTextHeight + 3 * kGap;
  Tensor sheet = white(cell_height + kGap, count * cell_width + kGap);
  for (std::int64_t i = 0; i < count; ++i) {
    const float* map = values.data<float>() + i * cells;
    const auto [low, high] = std::minmax_element(map, map + cells);
    const double most = std::max({std::abs(static_cast<double>(*low)), std::abs(static_cast<double>(*high)), 1e-300});
    const std::int64_t left = kGap + i * cell_width, second = kGap + height * scale + kGap;
    paint(sheet, kGap, left, height, width, scale, [&](std::int64_t c, std::int64_t y, std::int64_t x) {
      return color_of(pictures, preprocessing, i, c, y, x);
    });
    paint(sheet, second, left, height, width, scale, [&](std::int64_t c, std::int64_t y, std::int64_t x) {
      constexpr double kPositive[] = {0.84, 0.10, 0.11}, kNegative[] = {0.10, 0.42, 0.95};
      constexpr double kDarkest = 0.25, kLightest = 0.95, kCover = 0.8;
      double grey = 0;
      for (std::int64_t channel = 0; channel < 3; ++channel)
        grey += color_of(pictures, preprocessing, i, channel, y, x) / 3;
      grey = kDarkest + (kLightest - kDarkest) * grey;
      const auto value =
          static_cast<double>(map[y * values.size(1) / height * values.size(2) + x * values.size(2) / width]);
      if (!std::isfinite(value)) return 0.0;
      const double share = kCover * std::abs(value) / most;
      return (1 - share) * grey + share * (value < 0 ? kNegative : kPositive)[c];
    });
    draw_text(sheet, fitting(format("{:.2g} to {:.2g}", *low, *high), width * scale, 1), second + height * scale + 2,
              left, 1, 0, 0, 0);
  }
  draw_text(sheet,
            fitting("red: positive, blue: negative, each from 0 to the largest magnitude", sheet.size(2) - 2 * kGap, 1),
            sheet.size(1) - kTextHeight - 2, kGap, 1, 0, 0, 0);
  return sheet;
}

}  // namespace polygrad

// Pathfinder32: irregular folders; the generator's pictures redrawn by another hand, labels, statistics.
#include "data/pathfinder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numbers>

#include "data/catalog.h"
#include "data/pathfinder_generator.h"
#include "data/png.h"
#include "engine/error.h"
#include "engine/log.h"
#include "engine/parallel.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

constexpr const char* kHard = "curv_contour_length_14";

std::string picture(std::uint8_t grey, std::int64_t height = 32, std::int64_t width = 32) {
  TensorOptions options;
  options.dtype = DType::u8;
  Tensor pixels = Tensor::empty(Shape{1, height, width}, options);
  std::fill_n(pixels.data<std::uint8_t>(), pixels.numel(), grey);
  return png_bytes(pixels);
}

// A level's folder with pictures 0, 1, ... of grey 10, 11, ... and these lines of metadata.
void make_level(const std::string& folder, int pictures, const std::string& metadata) {
  std::filesystem::create_directories(folder + "/imgs/0");
  std::filesystem::create_directories(folder + "/metadata");
  for (int i = 0; i < pictures; ++i) {
    write_bytes(folder + "/imgs/0/sample_" + std::to_string(i) + ".png", picture(static_cast<std::uint8_t>(10 + i)));
  }
  write_bytes(folder + "/metadata/0.npy", metadata);
}

std::string failure_of(const std::string& root) {
  try {
    PathfinderDataset(root, "hard");
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

std::int64_t first_id(const Dataset& data, std::int64_t index) {
  Generator unused;
  return data.get(index, unused).tokens.to_vector<std::int64_t>()[0];
}

// --- another hand: a picture from its dashes and discs ---------------------------------------------------------------

using Grid = std::vector<double>;  // rows of `side`

// Pillow's 8-bit Lanczos-3, written for clarity: fixed-point weights, rounded and clipped after each of two passes.
Grid reduce(const Grid& fine, int from, int to) {
  const double scale = static_cast<double>(from) / to;
  std::vector<std::map<int, double>> weights(static_cast<std::size_t>(to));
  for (int i = 0; i < to; ++i) {
    const double centre = (i + 0.5) * scale;
    double sum = 0;
    std::map<int, double>& row = weights[static_cast<std::size_t>(i)];
    for (int j = std::max(0, static_cast<int>(centre - 3 * scale + 0.5));
         j < std::min(from, static_cast<int>(centre + 3 * scale + 0.5)); ++j) {
      const double x = (j - centre + 0.5) / scale;
      const auto sinc = [](double t) { return t == 0 ? 1 : std::sin(std::numbers::pi * t) / (std::numbers::pi * t); };
      row[j] = std::abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0;
      sum += row[j];
    }
    for (auto& [j, weight] : row) weight = std::round(weight / sum * 4194304) / 4194304;
  }
  const auto rounded = [](double value) { return std::min(255.0, std::max(0.0, std::floor(value + 0.5))); };
  Grid across(static_cast<std::size_t>(from * to)), out(static_cast<std::size_t>(to * to));
  for (int y = 0; y < from; ++y) {
    for (int i = 0; i < to; ++i) {
      double sum = 0;
      for (const auto& [j, weight] : weights[static_cast<std::size_t>(i)]) {
        sum += weight * fine[static_cast<std::size_t>(y * from + j)];
      }
      across[static_cast<std::size_t>(y * to + i)] = rounded(sum);
    }
  }
  for (int i = 0; i < to; ++i) {
    for (int x = 0; x < to; ++x) {
      double sum = 0;
      for (const auto& [j, weight] : weights[static_cast<std::size_t>(i)]) {
        sum += weight * across[static_cast<std::size_t>(j * to + x)];
      }
      out[static_cast<std::size_t>(i * to + x)] = rounded(sum);
    }
  }
  return out;
}

// The dash's 9 x 9 pixels around its head, 0 ... 255. A line of at most 5 pixels: the steps of its longer side.
Grid draw_dash(double angle) {
  Grid fine(17 * 17, 0);
  const int dy = static_cast<int>(std::ceil(8 + 4 * std::sin(angle))) - 8;
  const int dx = static_cast<int>(std::ceil(8 + 4 * std::cos(angle))) - 8;
  int error = std::abs(dx) - std::abs(dy), y = 8, x = 8;
  while (true) {
    fine[static_cast<std::size_t>(y * 17 + x)] = 255;
    if (y == 8 + dy && x == 8 + dx) break;
    const int twice = 2 * error;
    if (twice >= -std::abs(dy)) {
      error -= std::abs(dy);
      x += dx < 0 ? -1 : 1;
    }
    if (twice <= std::abs(dx)) {
      error += std::abs(dx);
      y += dy < 0 ? -1 : 1;
    }
  }
  return reduce(fine, 17, 9);
}

std::vector<std::uint8_t> redraw(const PathfinderPicture& drawn) {
  std::vector<float> image(1024, 0);
  const auto raise = [&](int y, int x, float value) {
    if (y < 0 || x < 0 || y >= 32 || x >= 32) return;
    float& pixel = image[static_cast<std::size_t>(y * 32 + x)];
    pixel = std::max(pixel, value);
  };
  for (const PathfinderDash& dash : drawn.dashes) {
    const Grid stencil = draw_dash(dash.angle);
    for (int j = 0; j < 9; ++j) {
      for (int i = 0; i < 9; ++i) {
        const float value = static_cast<float>(stencil[static_cast<std::size_t>(j * 9 + i)]) / 255.0f;
        raise(dash.y + j - 4, dash.x + i - 4, static_cast<float>(dash.contrast) * value);
      }
    }
  }
  Grid fine(64 * 64, 0);
  for (int y = 0; y < 64; ++y) {
    for (int x = 0; x < 64; ++x) {
      if ((y - 32) * (y - 32) + (x - 32) * (x - 32) <= 9) fine[static_cast<std::size_t>(y * 64 + x)] = 255;
    }
  }
  const Grid disc = reduce(fine, 64, 32);
  for (const PathfinderDisc& place : drawn.discs) {
    for (int j = -8; j <= 8; ++j) {
      for (int i = -8; i <= 8; ++i) {
        const double value = disc[static_cast<std::size_t>((16 + j) * 32 + 16 + i)];
        raise(place.y + j, place.x + i, static_cast<float>(value) / 255.0f);
      }
    }
  }
  const float high = *std::max_element(image.begin(), image.end());
  std::vector<std::uint8_t> bytes;
  for (const float value : image) {
    bytes.push_back(static_cast<std::uint8_t>(std::floor(static_cast<double>(value) * 255 / high + 0.5)));
  }
  return bytes;
}

PathfinderPicture draw(std::uint64_t number, const PathfinderOptions& options = {}) {
  Generator generator(derive_seed(17, number));
  return draw_pathfinder(options, generator);
}

}  // namespace

TEST_CASE("text metadata with its irregularities: an empty file, an empty line, CRLF") {
  const TemporaryFolder folder;
  make_level(folder.path() + "/pathfinder32/" + kHard, 4,
             "imgs/0 sample_0.png 0 1 1.0 14 4 2 0.5 1 1\r\nimgs/0 sample_1.png 1 0 1.0 14 4 2 0.5 1 1\r\n"
             "imgs/0 sample_2.png 2 1 1.0 14 4 2 0.5 1 1\nimgs/0 sample_3.png 3 0\n\n");
  write_bytes(folder / "pathfinder32/curv_contour_length_14/imgs/0/sample_1.png", "");
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel, std::string_view text) { warnings.emplace_back(text); });
  const PathfinderDataset data(folder.path(), "hard");
  set_log_sink({});
  CHECK(data.size() == 3);
  CHECK(data.left_out() == std::vector<std::string>{"1 pictures of 0 bytes"});
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("1 pictures of 0 bytes are left out") != std::string::npos);
  CHECK(data.label(0) == 1);
  CHECK(data.label(1) == 1);
  CHECK(data.label(2) == 0);
  CHECK(first_id(data, 1) == 12);
  CHECK(data.describe(1) == data.folder() + "/imgs/0/sample_2.png");
  // The level's folder itself, or one above.
  CHECK(PathfinderDataset(folder / "pathfinder32", "hard").size() == 3);
  CHECK(PathfinderDataset(data.folder(), "hard").fingerprint() == data.fingerprint());
}

TEST_CASE("metadata files come in the order of their numbers") {
  const TemporaryFolder folder;
  const std::string base = folder.path() + "/" + kHard;
  make_level(base, 3, "imgs/0 sample_0.png 0 1\n");
  write_bytes(base + "/metadata/10.npy", "imgs/0 sample_1.png 0 0\n");
  write_bytes(base + "/metadata/9.npy", "imgs/0 sample_2.png 0 0\n");
  const PathfinderDataset data(folder.path(), "hard");
  CHECK(data.describe(1).ends_with("sample_2.png"));
  CHECK(data.describe(2).ends_with("sample_1.png"));
}

TEST_CASE("two copies of a level are named, both") {
  const TemporaryFolder folder;
  make_level(folder.path() + "/a/" + kHard, 1, "imgs/0 sample_0.png 0 1\n");
  make_level(folder.path() + "/a/b/" + kHard, 1, "imgs/0 sample_0.png 0 1\n");
  const std::string text = failure_of(folder.path());
  CHECK(text.find("/a/b/curv_contour_length_14") != std::string::npos);
  CHECK(text.find("/a/curv_contour_length_14") != std::string::npos);
  CHECK(PathfinderDataset(folder / "a/b", "hard").size() == 1);
  // Inside the other, too; but the one that is named is meant.
  const TemporaryFolder nested;
  make_level(nested / kHard, 1, "imgs/0 sample_0.png 0 1\n");
  make_level(nested.path() + "/" + kHard + "/" + kHard, 1, "imgs/0 sample_0.png 0 0\n");
  CHECK(failure_of(nested.path()).find("/curv_contour_length_14/curv_contour_length_14;") != std::string::npos);
  CHECK(PathfinderDataset(nested / kHard, "hard").label(0) == 1);
  CHECK(PathfinderDataset(nested / kHard + "/", "hard").label(0) == 1);
}

TEST_CASE("pictures without a line and lines that repeat a picture are counted; two labels of one are an error") {
  const TemporaryFolder folder;
  const std::string base = folder / kHard;
  make_level(base, 5, "imgs/0 sample_0.png 0 1\nimgs/0\tsample_1.png\t1\t0\nimgs/0 sample_1.png 1 0\n");
  write_bytes(base + "/metadata/1.npy", "./imgs/0/ sample_0.png 0 1\nimgs/0 sample_2.png 2 1\n");
  write_bytes(base + "/imgs/0/.hidden.png", "");
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel, std::string_view text) { warnings.emplace_back(text); });
  const PathfinderDataset data(folder.path(), "hard");
  set_log_sink({});
  CHECK(data.size() == 3);
  CHECK(data.label(1) == 0);
  CHECK(data.left_out() == std::vector<std::string>{"2 lines that repeat a picture (such as imgs/0/sample_1.png)",
                                                    "2 pictures without a line (such as imgs/0/sample_3.png)"});
  REQUIRE(warnings.size() == 2);
  CHECK(warnings[1].ends_with("imgs/0/sample_3.png) are left out"));
  write_bytes(base + "/metadata/1.npy", "imgs/0 sample_2.png 2 1\nimgs/0 sample_1.png 1 1\n");
  CHECK(failure_of(folder.path()).find("1.npy:2: the picture imgs/0/sample_1.png has the label 1 here, and 0") !=
        std::string::npos);
}

TEST_CASE("what is missing or malformed is named") {
  const TemporaryFolder folder;
  CHECK(failure_of(folder.path()).find("has no folder curv_contour_length_14") != std::string::npos);
  CHECK(failure_of(folder / "none").find("has no folder") != std::string::npos);
  const std::string base = folder.path() + "/" + kHard;
  make_level(base, 1, "");
  CHECK(failure_of(folder.path()).find("lists no picture") != std::string::npos);
  const auto with = [&](const std::string& metadata) {
    write_bytes(base + "/metadata/0.npy", metadata);
    return failure_of(folder.path());
  };
  CHECK(with("\x93NUMPY\x01").find("is a binary NumPy array; expected text") != std::string::npos);
  CHECK(with("imgs/0 sample_0.png 0 1\nimgs/0 sample_0.png 0\n").find("0.npy:2: expected folder, file") !=
        std::string::npos);
  CHECK(with("imgs/0 sample_0.png 0 2\n").find("0.npy:1: expected folder, file, number and a label 0 or 1") !=
        std::string::npos);
  CHECK(with("imgs/0 sample_7.png 0 1\n").find("sample_7.png") != std::string::npos);
  CHECK_THROWS_WITH_AS(PathfinderDataset(folder.path(), "harder"), doctest::Contains("hard, intermediate or easy"),
                       ConfigError);
  // A picture's own faults show when it is read.
  write_bytes(base + "/metadata/0.npy", "imgs/0 sample_0.png 0 1\n");
  Generator unused;
  const auto read = [&](const std::string& content) {
    write_bytes(base + "/imgs/0/sample_0.png", content);
    try {
      PathfinderDataset(folder.path(), "hard").get(0, unused);
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(read(picture(1, 32, 64)).find("sample_0.png: 32 x 64 pixels; expected 32 x 32") != std::string::npos);
  CHECK(read(picture(3).substr(0, 60)).find("sample_0.png") != std::string::npos);
  CHECK(read("text").find("sample_0.png") != std::string::npos);
  CHECK(read(picture(3)).empty());
}

TEST_CASE("a generated picture is its dashes and discs, redrawn here") {
  for (const char* level : {"hard", "intermediate", "easy"}) {
    for (const char* contrast : {"bright", "equal"}) {
      for (std::uint64_t number = 0; number < 10; ++number) {
        const PathfinderPicture drawn = draw(number, {level, contrast});
        CAPTURE(level);
        CAPTURE(contrast);
        CAPTURE(number);
        CHECK(redraw(drawn) == drawn.grey);
      }
    }
  }
}

TEST_CASE("both discs lie at the ends of one path exactly where the label is 1") {
  int connected = 0;
  constexpr int kPictures = 200;
  for (int number = 0; number < kPictures; ++number) {
    const PathfinderPicture drawn = draw(static_cast<std::uint64_t>(number));
    const auto path_at = [&](const PathfinderDisc& disc) {  // found from the dashes, not from what the disc says
      for (int path = 0; path < 2; ++path) {
        std::vector<PathfinderDash> dashes;
        for (const PathfinderDash& dash : drawn.dashes) {
          if (dash.path == path) dashes.push_back(dash);
        }
        CHECK(dashes.size() == 14);
        const PathfinderDash& end = disc.last ? dashes.back() : dashes.front();
        if (end.y == disc.y && end.x == disc.x) return path;
      }
      return -1;
    };
    const int first = path_at(drawn.discs[0]), second = path_at(drawn.discs[1]);
    CHECK(first >= 0);
    CHECK(second >= 0);
    CHECK((first == second) == (drawn.label == 1));
    CHECK(!drawn.discs[0].last);
    CHECK(drawn.discs[1].last);
    connected += drawn.label;
  }
  CHECK(connected > 70);
  CHECK(connected < 130);
}

TEST_CASE("the dashes of a path follow each other; pictures have the documented statistics") {
  double attempts = 0, distractors = 0, black = 0;
  constexpr int kPictures = 300;
  for (int number = 0; number < kPictures; ++number) {
    const PathfinderPicture drawn = draw(static_cast<std::uint64_t>(number));
    std::map<int, std::vector<PathfinderDash>> paths;
    for (const PathfinderDash& dash : drawn.dashes) paths[dash.path].push_back(dash);
    for (const auto& [path, dashes] : paths) {
      CHECK(dashes.size() == (path < 2 ? 14 : 4));
      CHECK(dashes[0].contrast == (path < 2 ? 1.5 : 2.0));
      for (std::size_t i = 1; i < dashes.size(); ++i) {
        const double step = std::hypot(dashes[i].y - dashes[i - 1].y, dashes[i].x - dashes[i - 1].x);
        CHECK(step >= 1);
        CHECK(step < 9);
      }
      for (const PathfinderDash& dash : dashes) CHECK((dash.y >= 0 && dash.y < 32 && dash.x >= 0 && dash.x < 32));
    }
    attempts += drawn.attempts;
    distractors += static_cast<double>(paths.size()) - 2;
    black += static_cast<double>(std::count(drawn.grey.begin(), drawn.grey.end(), 0)) / 1024;
    CHECK(*std::max_element(drawn.grey.begin(), drawn.grey.end()) == 255);
  }
  // An independent program of the same rules: 58 attempts, 4.6 distractors, 58 % black before the discs.
  CHECK(attempts / kPictures == doctest::Approx(58).epsilon(0.25));
  CHECK(distractors / kPictures == doctest::Approx(4.6).epsilon(0.05));
  CHECK(black / kPictures == doctest::Approx(0.57).epsilon(0.06));
}

TEST_CASE("generated folders: original layout, one seed one set whatever the threads, read back") {
  const TemporaryFolder folder;
  {
    const NumThreadsGuard one(1);
    write_pathfinder(folder / "a", 60, 5);
  }
  const NumThreadsGuard four(4);
  write_pathfinder(folder / "b", 60, 5);
  const std::string base = std::string("/pathfinder32/") + kHard;
  CHECK(read_bytes(folder / "a" + base + "/metadata/0.npy") == read_bytes(folder / "b" + base + "/metadata/0.npy"));
  CHECK(read_bytes(folder / "a" + base + "/imgs/0/sample_41.png") ==
        read_bytes(folder / "b" + base + "/imgs/0/sample_41.png"));
  const std::string metadata = read_bytes(folder / "a" + base + "/metadata/0.npy");
  CHECK(metadata.find("imgs/0 sample_0.png 0 ") == 0);
  CHECK(metadata.find(" 1.0 14 4 2 0.5 1 1\nimgs/0 sample_1.png 1 ") != std::string::npos);
  const PathfinderDataset data(folder / "a", "hard");
  CHECK(data.size() == 60);
  CHECK_THROWS_AS(write_pathfinder(folder / "c", 0, 5), ValueError);
  CHECK_THROWS_AS(write_pathfinder(folder / "c", 1, 5, {"hard", "dim"}), ConfigError);
}

TEST_CASE("the parts of a run: 80, 10, 10 %, disjoint, the same in each run, printed") {
  const TemporaryFolder folder;
  write_pathfinder(folder.path(), 100, 5);
  DataOptions options;
  options.name = "lra_pathfinder";
  options.root = folder.path();
  const DataParts parts = open_data(options), again = open_data(options);
  CHECK(parts.train->size() == 80);
  CHECK(parts.val->size() == 10);
  CHECK(parts.test->size() == 10);
  CHECK(parts.fingerprint() == again.fingerprint());
  std::map<std::string, int> seen;
  for (const auto& part : {parts.train, parts.val, parts.test}) {
    for (std::int64_t i = 0; i < part->size(); ++i) ++seen[part->describe(i)];
  }
  CHECK(seen.size() == 100);
  CHECK(parts.report.find("level  hard") == 0);
  CHECK(parts.report.find("\ntrain") != std::string::npos);
  options.split_seed = 1;
  CHECK(open_data(options).fingerprint() != parts.fingerprint());
}

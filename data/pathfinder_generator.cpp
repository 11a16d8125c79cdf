// How it works: everything that is drawn is one of few small stencils (a dash in one of 360 directions, or along one of
// 49 offsets; a disc), prepared once. The picture and its mask of taken places are 32 x 32 floats; a path grows dash by
// dash to places that the mask leaves free, and an attempt that gets stuck is begun anew.
#include "data/pathfinder_generator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numbers>

#include "data/grey_pixels.h"
#include "data/pathfinder.h"
#include "data/png.h"
#include "data/u8_image.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"
#include "engine/parallel.h"

namespace polygrad {

namespace {

constexpr double kPi = std::numbers::pi;
constexpr int kSide = static_cast<int>(kLraSide);
constexpr int kFine = 2;    // drawn so many times larger, then reduced
constexpr int kLength = 2;  // of a dash
constexpr int kMargin = 1;  // round a dash
constexpr int kReach = 4;   // a dash's stencil: length + thickness (0.5, rounded up) + margin, on either side
constexpr int kStencil = 2 * kReach + 1;
constexpr int kSeedDistance = 7;
constexpr int kTries = 3;  // of one step before an attempt is given up
constexpr int kDistractorTries = 5;
constexpr double kDiscRadius = 1.5;
constexpr int kDiscReach = 5;  // Lanczos carries the disc's rim so far
constexpr int kDegrees = 360;
constexpr std::uint64_t kPicturePurpose = 0x70617468;

struct Point {
  int y = 0, x = 0;
};

struct Level {
  int dashes, distractor_dashes, distractors;
};

Level level_of(const std::string& name) {
  pathfinder_folder(name);  // throws for an unknown one
  const int dashes = name == "hard" ? 14 : name == "intermediate" ? 9 : 6;
  const int distractor = dashes / 3;
  return {dashes, distractor, 20 / distractor};
}

struct Contrast {
  double target, distractor;
};

Contrast contrast_of(const std::string& name) {
  if (name == "bright") return {0.75 * 2, 2};
  if (name == "equal") return {1, 1};
  throw ConfigError(format("[generate.contrast] unknown contrast '{}'; expected bright or equal", name));
}

Point translate(Point from, double angle, double distance) {
  return {static_cast<int>(std::ceil(from.y + distance * std::sin(angle))),
          static_cast<int>(std::ceil(from.x + distance * std::cos(angle)))};
}

double reversed(double angle) { return angle < 0 ? angle + kPi : angle - kPi; }

bool inside(double y, double x) { return y >= 0 && x >= 0 && y < kSide && x < kSide; }
bool inside(Point p) { return inside(p.y, p.x); }

// --- stencils ------------------------------------------------------------------------------------------------------

// Pillow's resize of 8-bit rows by Lanczos-3: weights of 22 fractional bits, rounded and clipped after each pass.
std::vector<std::uint8_t> lanczos(const std::vector<std::uint8_t>& fine, int from, int to) {
  constexpr int kBits = 22, kLobes = 3;
  const auto kernel = [](double x) {
    if (x == 0) return 1.0;
    if (x <= -kLobes || x >= kLobes) return 0.0;
    const double a = kPi * x, b = a / kLobes;
    return std::sin(a) / a * (std::sin(b) / b);
  };
  struct Taps {
    int first = 0;
    std::vector<std::int64_t> weights;
  };
  const double scale = static_cast<double>(from) / to, filter = std::max(scale, 1.0), support = kLobes * filter;
  std::vector<Taps> taps(static_cast<std::size_t>(to));
  for (int i = 0; i < to; ++i) {
    const double centre = (i + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(centre - support + 0.5));
    const int end = std::min(from, static_cast<int>(centre + support + 0.5));
    std::vector<double> weights;
    double sum = 0;
    for (int j = first; j < end; ++j) {
      weights.push_back(kernel((j - centre + 0.5) / filter));
      sum += weights.back();
    }
    Taps& tap = taps[static_cast<std::size_t>(i)];
    tap.first = first;
    for (const double weight : weights) tap.weights.push_back(std::llround(weight / sum * (1 << kBits)));
  }
  const auto pass = [&](const std::vector<std::uint8_t>& in, int rows, int stride, int step) {
    std::vector<std::uint8_t> out(static_cast<std::size_t>(rows * to));
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < to; ++i) {
        const Taps& tap = taps[static_cast<std::size_t>(i)];
        std::int64_t sum = std::int64_t{1} << (kBits - 1);
        for (std::size_t j = 0; j < tap.weights.size(); ++j) {
          sum += tap.weights[j] * in[static_cast<std::size_t>(row * stride + (tap.first + static_cast<int>(j)) * step)];
        }
        out[static_cast<std::size_t>(row * to + i)] =
            static_cast<std::uint8_t>(std::clamp<std::int64_t>(sum >> kBits, 0, 255));
      }
    }
    return out;
  };
  const std::vector<std::uint8_t> across = pass(fine, from, from, 1);  // (from, to)
  const std::vector<std::uint8_t> turned = pass(across, to, 1, to);    // column by column: (to, to), transposed
  std::vector<std::uint8_t> out(turned.size());
  for (int y = 0; y < to; ++y) {
    for (int x = 0; x < to; ++x)
      out[static_cast<std::size_t>(y * to + x)] = turned[static_cast<std::size_t>(x * to + y)];
  }
  return out;
}

using Stencil = std::array<float, kStencil * kStencil>;

struct Dash {
  Stencil line, mask;  // 0 ... 1
};

// A line of width 1 (Bresenham), white on black.
void draw_line(std::vector<std::uint8_t>& canvas, int side, Point from, Point to) {
  const int dx = std::abs(to.x - from.x), dy = -std::abs(to.y - from.y);
  const int step_x = from.x < to.x ? 1 : -1, step_y = from.y < to.y ? 1 : -1;
  int error = dx + dy;
  while (true) {
    canvas[static_cast<std::size_t>(from.y * side + from.x)] = 255;
    if (from.x == to.x && from.y == to.y) return;
    const int doubled = 2 * error;
    if (doubled >= dy) {
      error += dy;
      from.x += step_x;
    }
    if (doubled <= dx) {
      error += dx;
      from.y += step_y;
    }
  }
}

Dash make_dash(double angle) {
  constexpr int kSideFine = 2 * kReach * kFine + 1;
  const Point centre{kReach * kFine, kReach * kFine};
  std::vector<std::uint8_t> line(kSideFine * kSideFine, 0), mask = line;
  draw_line(line, kSideFine, centre, translate(centre, angle, kLength * kFine));
  constexpr int kRadius = kMargin * kFine;
  for (int y = 0; y < kSideFine; ++y) {
    for (int x = 0; x < kSideFine; ++x) {
      for (int j = -kRadius; j <= kRadius; ++j) {
        for (int i = -kRadius; i <= kRadius; ++i) {
          const int yy = y + j, xx = x + i;
          const bool in_disc = j * j + i * i <= kRadius * kRadius;
          if (!in_disc || yy < 0 || xx < 0 || yy >= kSideFine || xx >= kSideFine) continue;
          if (line[static_cast<std::size_t>(yy * kSideFine + xx)] != 0) {
            mask[static_cast<std::size_t>(y * kSideFine + x)] = 255;
          }
        }
      }
    }
  }
  const auto reduced = [&](const std::vector<std::uint8_t>& fine) {
    const std::vector<std::uint8_t> bytes = lanczos(fine, kSideFine, kStencil);
    Stencil stencil;
    for (std::size_t i = 0; i < stencil.size(); ++i) stencil[i] = static_cast<float>(bytes[i]) / 255.0f;
    return stencil;
  };
  return {reduced(line), reduced(mask)};
}

struct Stencils {
  std::array<Dash, kDegrees> by_degree;          // -180 ... 179
  std::array<std::array<Dash, 7>, 7> by_offset;  // [dy + 3][dx + 3]: from the offset back towards (0, 0)
  std::array<float, (2 * kDiscReach + 1) * (2 * kDiscReach + 1)> disc;

  Stencils() {
    for (int i = 0; i < kDegrees; ++i) by_degree[static_cast<std::size_t>(i)] = make_dash((i - 180) * kPi / 180);
    for (int dy = -3; dy <= 3; ++dy) {
      for (int dx = -3; dx <= 3; ++dx) {
        by_offset[static_cast<std::size_t>(dy + 3)][static_cast<std::size_t>(dx + 3)] =
            make_dash(reversed(std::atan2(dy, dx)));
      }
    }
    std::vector<std::uint8_t> fine(4 * kSide * kSide, 0);
    constexpr int kSideFine = kSide * kFine, kCentre = kSide / 2;  // far from the border
    for (int y = 0; y < kSideFine; ++y) {
      for (int x = 0; x < kSideFine; ++x) {
        const int j = y - kCentre * kFine, i = x - kCentre * kFine;
        if (j * j + i * i <= kDiscRadius * kFine * kDiscRadius * kFine) {
          fine[static_cast<std::size_t>(y * kSideFine + x)] = 255;
        }
      }
    }
    const std::vector<std::uint8_t> bytes = lanczos(fine, kSideFine, kSide);
    for (int y = -kDiscReach; y <= kDiscReach; ++y) {
      for (int x = -kDiscReach; x <= kDiscReach; ++x) {
        disc[static_cast<std::size_t>((y + kDiscReach) * (2 * kDiscReach + 1) + x + kDiscReach)] =
            static_cast<float>(bytes[static_cast<std::size_t>((kCentre + y) * kSide + kCentre + x)]) / 255.0f;
      }
    }
  }
};

const Stencils& stencils() {
  static const Stencils all;
  return all;
}

// --- a picture under way -------------------------------------------------------------------------------------------

struct Canvas {
  std::array<float, kSide * kSide> pixels{};

  float& at(int y, int x) { return pixels[static_cast<std::size_t>(y * kSide + x)]; }
  float at(int y, int x) const { return pixels[static_cast<std::size_t>(y * kSide + x)]; }
};

// Calls visit(canvas y, canvas x, stencil value) for the stencil's pixels around `centre` that lie inside.
template <class Visit>
void over(const float* stencil, int reach, Point centre, Visit visit) {
  for (int j = -reach; j <= reach; ++j) {
    for (int i = -reach; i <= reach; ++i, ++stencil) {
      if (inside(centre.y + j, centre.x + i)) visit(centre.y + j, centre.x + i, *stencil);
    }
  }
}

void raise(Canvas& canvas, const float* stencil, int reach, Point centre, double contrast) {
  over(stencil, reach, centre, [&](int y, int x, float value) {
    canvas.at(y, x) = std::max(canvas.at(y, x), static_cast<float>(contrast) * value);
  });
}

void set_border(Canvas& mask) {
  for (int i = 0; i < kSide; ++i) mask.at(0, i) = mask.at(kSide - 1, i) = mask.at(i, 0) = mask.at(i, kSide - 1) = 1;
}

// A path under way: where it will be continued, in which direction, and its newest dash, which the mask does not hold
// yet so that the next one may touch its margin.
struct Path {
  Point pivot;
  double angle = 0;
  const Stencil* newest = nullptr;
  Point newest_at;
  std::vector<PathfinderDash> dashes;
  Point first_end, last_end;
};

struct Picture {
  Canvas image, mask;
};

class Drawing {
 public:
  Drawing(const PathfinderOptions& options, Generator& generator)
      : level_(level_of(options.level)), contrast_(contrast_of(options.contrast)), generator_(generator) {}

  PathfinderPicture draw() {
    PathfinderPicture result;
    Picture picture;
    Path paths[2];
    do {
      ++result.attempts;
    } while (!draw_targets(picture, paths));
    merge_newest(picture, paths[1]);
    std::vector<Path> distractors = draw_distractors(picture);
    result.label = generator_.bernoulli(0.5) ? 1 : 0;
    const int begin = static_cast<int>(generator_.integer(0, 2)), end = result.label == 1 ? begin : 1 - begin;
    result.discs[0] = {paths[begin].first_end.y, paths[begin].first_end.x, begin, false};
    result.discs[1] = {paths[end].last_end.y, paths[end].last_end.x, end, true};
    for (const PathfinderDisc& disc : result.discs) {
      raise(picture.image, stencils().disc.data(), kDiscReach, {disc.y, disc.x}, 1);
    }
    const auto keep = [&](const Path& path, int number) {
      for (PathfinderDash dash : path.dashes) {
        dash.path = number;
        result.dashes.push_back(dash);
      }
    };
    for (int i = 0; i < 2; ++i) keep(paths[i], i);
    for (std::size_t i = 0; i < distractors.size(); ++i) keep(distractors[i], static_cast<int>(i) + 2);
    const auto [low, high] = std::minmax_element(picture.image.pixels.begin(), picture.image.pixels.end());
    for (const float value : picture.image.pixels) {
      const double scaled = (static_cast<double>(value) - *low) * 255.0 / (static_cast<double>(*high) - *low);
      result.grey.push_back(static_cast<std::uint8_t>(std::floor(scaled + 0.5)));
    }
    return result;
  }

 private:
  // Whether a dash from p in this direction would meet what is taken. The stencil's head lies one pixel off the middle
  // of the 7 x 7 window that is looked at, as in the source.
  static bool meets(const Canvas& mask, int degree, Point p) {
    constexpr int kWindow = 2 * (kLength + kMargin) + 1, kMiddle = kWindow / 2;
    const Stencil& kernel = stencils().by_degree[static_cast<std::size_t>(degree)].mask;
    for (int j = 0; j < kWindow; ++j) {
      for (int i = 0; i < kWindow; ++i) {
        const bool counts = kernel[static_cast<std::size_t>(j * kStencil + i)] >= 1.0f;
        const Point q{p.y + j - kMiddle, p.x + i - kMiddle};
        if (counts && inside(q) && mask.at(q.y, q.x) > 0.3f) return true;
      }
    }
    return false;
  }

  // The first dash: from `tail`, `degree` + 180 counted from 0.
  bool seed(Picture& picture, Path& path, Point tail, int degree, double contrast) const {
    const double angle = (degree - 180) * kPi / 180;
    const Point head = translate(tail, angle, kLength);
    path.pivot = translate(head, reversed(angle), kLength + kMargin);
    if (!inside(tail) || !inside(head) || !inside(path.pivot)) return false;
    path.angle = angle;
    const Dash& dash = stencils().by_degree[static_cast<std::size_t>(degree)];
    raise(picture.image, dash.line.data(), kReach, tail, contrast);
    path.newest = &dash.mask;
    path.newest_at = tail;
    path.first_end = path.last_end = tail;
    path.dashes = {{tail.y, tail.x, angle, contrast}};
    return true;
  }

  // A first dash somewhere free, at least `border` pixels from the sides. False where nothing is free.
  bool seed_anywhere(Picture& picture, Path& path, int border, double least_free, double contrast) {
    for (int attempt = 0; attempt < kTries; ++attempt) {
      const int degree = static_cast<int>(generator_.integer(0, kDegrees));
      Canvas forbidden = picture.mask;
      for (int y = 0; y < kSide; ++y) {
        for (int x = 0; x < kSide; ++x) {
          const bool at_side = std::min({y, x, kSide - 1 - y, kSide - 1 - x}) < border;
          if (at_side) forbidden.at(y, x) = 1;
        }
      }
      std::vector<Point> free;
      for (int y = 0; y < kSide; ++y) {
        for (int x = 0; x < kSide; ++x) {
          if (!meets(forbidden, degree, {y, x})) free.push_back({y, x});
        }
      }
      if (free.empty() || static_cast<double>(free.size()) < least_free * kSide * kSide) return false;
      const Point tail = free[static_cast<std::size_t>(generator_.integer(0, std::ssize(free)))];
      if (seed(picture, path, tail, degree, contrast)) return true;
    }
    return false;
  }

  bool seed_beside(Picture& picture, Path& path, Point other, double contrast) {
    for (int attempt = 0; attempt < kTries; ++attempt) {
      const int degree = static_cast<int>(generator_.integer(0, kDegrees));
      const double around = static_cast<double>(generator_.integer(0, kDegrees)) * kPi / 180;
      const Point tail{static_cast<int>(std::lround(other.y + kSeedDistance * std::sin(around))),
                       static_cast<int>(std::lround(other.x + kSeedDistance * std::cos(around)))};
      if (seed(picture, path, tail, degree, contrast)) return true;
    }
    return false;
  }

  static void merge_newest(Picture& picture, const Path& path) {
    raise(picture.mask, path.newest->data(), kReach, path.newest_at, 1);
  }

  // The mask's largest value within one pixel: where a dash may not end.
  static float taken(const Canvas& mask, Point p) {
    float most = 0;
    constexpr Point kCross[] = {{0, 0}, {-1, 0}, {1, 0}, {0, -1}, {0, 1}};
    for (const Point d : kCross) {
      if (inside(p.y + d.y, p.x + d.x)) most = std::max(most, mask.at(p.y + d.y, p.x + d.x));
    }
    return most;
  }

  struct Candidate {
    Point at;
    double angle, weight;
  };

  // The places where a next dash may end, on a circle round the new pivot: straight on is likelier than round a bend.
  static std::vector<Candidate> candidates(const Canvas& mask, Point pivot, double angle) {
    constexpr int kRadius = kLength + kMargin;
    const double step = 360 / (2 * kPi * kRadius);
    std::vector<Point> places;
    for (double degree = 0; degree < 360; degree += step) {
      const double y = pivot.y + kRadius * std::sin(degree * kPi / 180);
      const double x = pivot.x + kRadius * std::cos(degree * kPi / 180);
      if (inside(y, x)) places.push_back({static_cast<int>(y), static_cast<int>(x)});
    }
    const auto before = [](Point a, Point b) { return a.y != b.y ? a.y < b.y : a.x < b.x; };
    std::sort(places.begin(), places.end(), before);
    const auto same = [](Point a, Point b) { return a.y == b.y && a.x == b.x; };
    places.erase(std::unique(places.begin(), places.end(), same), places.end());
    std::vector<Candidate> result;
    for (const Point place : places) {
      const double direction = std::atan2(place.y - pivot.y, place.x - pivot.x);
      const double turn = std::abs(direction - angle), bend = std::min({turn, 2 * kPi - turn, kPi / 2});
      const double straight = std::max(std::cos(bend), 0.0);
      const double open = 1 - static_cast<double>(taken(mask, place));
      result.push_back({place, direction, straight * straight * open});
    }
    return result;
  }

  bool extend(Picture& picture, Path& path, double contrast) {
    const Point pivot = translate(path.pivot, path.angle, kLength + 2 * kMargin);
    const std::vector<Candidate> places = candidates(picture.mask, pivot, path.angle);
    double sum = 0;
    for (const Candidate& place : places) sum += place.weight;
    if (sum < 1e-4) return false;
    for (int attempt = 0; attempt < kTries; ++attempt) {
      double left = generator_.uniform(0, sum);
      std::size_t chosen = 0;
      while (chosen + 1 < places.size() && left >= places[chosen].weight) left -= places[chosen++].weight;
      const Candidate& place = places[chosen];
      const Dash& dash = stencils().by_offset[static_cast<std::size_t>(place.at.y - pivot.y + 3)]
                                             [static_cast<std::size_t>(place.at.x - pivot.x + 3)];
      float most = 0;
      over(dash.mask.data(), kReach, place.at,
           [&](int y, int x, float value) { most = std::max(most, picture.mask.at(y, x) + value); });
      if (most >= 1.8f) continue;
      raise(picture.image, dash.line.data(), kReach, place.at, contrast);
      merge_newest(picture, path);
      path.newest = &dash.mask;
      path.newest_at = path.last_end = place.at;
      path.pivot = pivot;
      path.angle = place.angle;
      path.dashes.push_back({place.at.y, place.at.x, reversed(place.angle), contrast});
      return true;
    }
    return false;
  }

  bool draw_targets(Picture& picture, Path (&paths)[2]) {
    picture = Picture();
    set_border(picture.mask);
    if (!seed_anywhere(picture, paths[0], 2 * kSeedDistance, 0, contrast_.target)) return false;
    if (!seed_beside(picture, paths[1], paths[0].first_end, contrast_.target)) return false;
    for (int dash = 1; dash < level_.dashes; ++dash) {
      for (Path& path : paths) {
        if (!extend(picture, path, contrast_.target)) return false;
      }
    }
    return true;
  }

  std::vector<Path> draw_distractors(Picture& picture) {
    constexpr double kLeastFree = 0.01;
    std::vector<Path> done;
    for (int number = 0; number < level_.distractors; ++number) {
      for (int attempt = 0; attempt < kDistractorTries; ++attempt) {
        Picture trial = picture;
        Path path;
        bool complete = seed_anywhere(trial, path, 1, kLeastFree, contrast_.distractor);
        for (int dash = 1; complete && dash < level_.distractor_dashes; ++dash) {
          complete = extend(trial, path, contrast_.distractor);
        }
        if (!complete) continue;
        merge_newest(trial, path);
        picture = trial;
        done.push_back(std::move(path));
        break;
      }
    }
    return done;
  }

  Level level_;
  Contrast contrast_;
  Generator& generator_;
};

void make_folder(const std::string& folder) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) throw IoError(format("[pathfinder] {} can't be made: {}", folder, failure.message()));
}

}  // namespace

PathfinderPicture draw_pathfinder(const PathfinderOptions& options, Generator& generator) {
  return Drawing(options, generator).draw();
}

void write_pathfinder(const std::string& folder, std::int64_t count, std::uint64_t seed,
                      const PathfinderOptions& options, const std::function<void(std::int64_t)>& progress) {
  if (count < 1) throw ValueError(format("[pathfinder] {} pictures; expected at least 1", count));
  const Level level = level_of(options.level);
  contrast_of(options.contrast);
  const std::string base = folder + "/pathfinder32/" + pathfinder_folder(options.level);
  make_folder(base + "/metadata");
  constexpr std::int64_t kBatch = 1000, kGrain = 8;
  for (std::int64_t batch = 0; batch * kBatch < count; ++batch) {
    const std::string images = format("imgs/{}", batch);
    make_folder(base + "/" + images);
    const std::int64_t size = std::min(kBatch, count - batch * kBatch);
    std::vector<int> labels(static_cast<std::size_t>(size));
    parallel_for(0, size, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        Generator generator(derive_seed(seed, kPicturePurpose, static_cast<std::uint64_t>(batch * kBatch + i)));
        const PathfinderPicture picture = draw_pathfinder(options, generator);
        labels[static_cast<std::size_t>(i)] = picture.label;
        Tensor grey = empty_u8(1, kLraSide, kLraSide);
        std::copy(picture.grey.begin(), picture.grey.end(), grey.data<std::uint8_t>());
        const std::string png = png_bytes(grey);
        const std::string path = format("{}/{}/sample_{}.png", base, images, i);
        std::ofstream file(path, std::ios::binary | std::ios::trunc);
        file.write(png.data(), static_cast<std::streamsize>(png.size()));
        file.close();
        if (!file) throw IoError(format("[pathfinder] {} can't be written", path));
      }
    });
    std::string lines;
    for (std::int64_t i = 0; i < size; ++i) {
      // folder file number label continuity path distractor length thickness margin contrasts
      lines += format("{} sample_{}.png {} {} 1.0 {} {} {} 0.5 {} 1\n", images, i, i,
                      labels[static_cast<std::size_t>(i)], level.dashes, level.distractor_dashes, kLength, kMargin);
    }
    write_file_atomically(format("{}/metadata/{}.npy", base, batch), lines);
    if (progress) progress(batch * kBatch + size);
  }
}

}  // namespace polygrad

// The generator of Pathfinder32: dashed paths among dashed distractors, two discs, and whether one path joins them.
//
// Where this stands: above png.h; pathfinder.h reads what this writes. Source: the rules of drewlinsley/pathfinder
// (snakes2.py) with the parameters of the Long Range Arena, lra_benchmarks/data/pathfinder.py. Picture i is drawn from
// (seed, i) alone. Read next: pathfinder_generator.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/generator.h"

namespace polygrad {

struct PathfinderOptions {
  std::string level = "hard";  // paths of 14 dashes; intermediate: 9, easy: 6
  // "bright": distractors are brighter than the paths (2 : 1.5), as the documented parameters have it. "equal": all
  // dashes are alike.
  std::string contrast = "bright";
};

// One dash: from (y, x) two pixels in the direction `angle` (0 along x, pi/2 along y, in radians).
struct PathfinderDash {
  int y = 0, x = 0;
  double angle = 0;
  double contrast = 1;
  int path = 0;  // 0 and 1: the two target paths; 2, 3, ...: distractors
};

struct PathfinderDisc {
  int y = 0, x = 0;
  int path = 0;       // whose end it lies at
  bool last = false;  // at the path's last dash, else at its first
};

struct PathfinderPicture {
  std::vector<std::uint8_t> grey;      // 32 x 32, row by row
  int label = 0;                       // 1: both discs lie on one path
  std::vector<PathfinderDash> dashes;  // each path's from its first end to its last
  PathfinderDisc discs[2];
  int attempts = 0;  // how often the two paths were begun
};

// Throws ConfigError for an unknown level or contrast.
PathfinderPicture draw_pathfinder(const PathfinderOptions& options, Generator& generator);

// Writes pathfinder32/LEVEL/{imgs/K/sample_I.png, metadata/K.npy} below `folder`, 1000 pictures to a K. A batch's
// metadata, which are text, are written when its pictures are there. `progress` (may be empty) hears how many there
// are. Throws ConfigError, ValueError, IoError.
void write_pathfinder(const std::string& folder, std::int64_t count, std::uint64_t seed,
                      const PathfinderOptions& options = {}, const std::function<void(std::int64_t)>& progress = {});

}  // namespace polygrad

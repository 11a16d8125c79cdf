// Position tables: learned positions of a grid of patches, and what becomes of them on another grid.
//
// Where this stands: beside weights.h, which resizes the table of a file whose images were of another size. A table is
// (1, prefix + height x width, dim): first the tokens that stand nowhere (the class token), then the grid row by row.
// Which grid that is can't be told from its length (2 x 8 and 4 x 4 are 16), so whoever holds a table keeps the grid.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "engine/tensor.h"

namespace polygrad {

using Grid = std::array<std::int64_t, 2>;  // rows, columns

struct PositionTable {
  std::string name;         // the parameter's path in its model
  std::int64_t prefix = 0;  // tokens in front of the grid
  Grid grid = {0, 0};
  std::int64_t patches() const { return grid[0] * grid[1]; }
};

std::string to_string(const Grid& grid);  // "14x16"
// The inverse, also of "14" (14x14); ConfigError for anything else.
Grid parse_grid(const std::string& text);

// `table` (1, prefix + from, dim), floating, on the CPU -> (1, prefix + to, dim), same dtype. The grid is interpolated
// by antialiased bicubic filters of a = -0.5, computed in f64: as timm's resample_abs_pos_embed does. The prefix is
// copied; the same grid gives the same bits. ShapeError where the table is not of `from`.
Tensor resize_positions(const Tensor& table, std::int64_t prefix, const Grid& from, const Grid& to);

}  // namespace polygrad

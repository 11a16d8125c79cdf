// HeatMap: a matrix in colours, written as a gnuplot script that reads it from a .npy file beside it.
//
// Where this stands: beside chart.h, above gnuplot.h; maps.h makes them of attention. The SVG holds the matrix as an
// embedded PNG picture, so that its size does not grow with the number of entries' digits.
#pragma once

#include <cstdint>
#include <string>

namespace polygrad {

struct HeatMap {
  std::string name;                              // of the files: NAME.gp, NAME.svg
  std::string data;                              // name of the file with f32 (rows, columns)
  std::int64_t rows = 0, columns = 0;            // row 0 is drawn at the top
  std::int64_t first_row = 0, first_column = 0;  // shown from there on; numbers at the axes are indices of the file
  std::int64_t cell = 1;                         // so many of what the axes count are one row or column
  std::string title, x_label, y_label, value_label;
  double low = 0, high = 0;  // where the colours end; where low is negative they diverge from 0
};

// ValueError where nothing is shown, or the name is no file's. `data_offset`: bytes of the .npy file before its
// numbers.
std::string gnuplot_script(const HeatMap& map, std::int64_t data_offset);

}  // namespace polygrad

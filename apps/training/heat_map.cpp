#include "apps/training/heat_map.h"

#include <algorithm>
#include <cmath>

#include "apps/training/gnuplot.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

namespace {

constexpr std::int64_t kMostEntries = 50000;  // to be drawn as several dots each
constexpr int kSide = 420, kLeft = 92, kRight = 146, kTop = 56, kBottom = 62;

// White at 0, where numbers have signs; else viridis.
constexpr const char* kDiverging = "0 \"#2166AC\", 1 \"#92C5DE\", 2 \"#F7F7F7\", 3 \"#F4A582\", 4 \"#B2182B\"";
constexpr const char* kSequential =
    "0 \"#440154\", 1 \"#472D7B\", 2 \"#3B528B\", 3 \"#2C728E\", 4 \"#21918C\", 5 \"#28AE80\", 6 \"#5EC962\", "
    "7 \"#ADDC30\", 8 \"#FDE725\"";

}  // namespace

std::string gnuplot_script(const HeatMap& map, std::int64_t data_offset) {
  check_picture_name(map.name);
  const std::int64_t rows = map.rows - map.first_row, columns = map.columns - map.first_column;
  if (rows < 1 || columns < 1) throw ValueError(format("[heat map] {} has nothing to show", map.name));
  double low = map.low, high = map.high;
  if (!std::isfinite(low) || !std::isfinite(high)) low = 0, high = 1;
  const bool signs = low < 0;
  if (signs) {
    high = std::max(high, -low);
    low = -high;
  } else {
    low = 0;
    if (!(high > 0)) high = 1;
  }
  // The longer side has kSide pixels; a strip of few rows stays readable.
  const double most = static_cast<double>(std::max(rows, columns));
  const int width = std::max(120, static_cast<int>(kSide * static_cast<double>(columns) / most));
  const int height = std::max(120, static_cast<int>(kSide * static_cast<double>(rows) / most));
  const int full_width = width + kLeft + kRight, full_height = height + kTop + kBottom;
  const auto edge = [&](std::int64_t index) {  // of the cell with that index, towards smaller ones
    return static_cast<double>(index * map.cell) - 0.5;
  };
  std::string text = format(
      "# gnuplot {0}.gp draws {0}.svg from {1}\n"
      "set terminal svg size {2},{3} font \"sans,12\" background rgb \"white\"\n"
      "set output \"{0}.svg\"\n"
      "set encoding utf8\n"
      "unset key\n"
      "set title {4} noenhanced\n"
      "set xlabel {5} noenhanced\n"
      "set ylabel {6} noenhanced\n"
      "set cblabel {7} noenhanced offset 1,0\n",
      map.name, map.data, full_width, full_height, gnuplot_text(map.title), gnuplot_text(map.x_label),
      gnuplot_text(map.y_label), gnuplot_text(map.value_label));
  text += format("set lmargin at screen {:.4f}\nset rmargin at screen {:.4f}\n",
                 static_cast<double>(kLeft) / full_width, static_cast<double>(kLeft + width) / full_width);
  text += format("set tmargin at screen {:.4f}\nset bmargin at screen {:.4f}\n",
                 1 - static_cast<double>(kTop) / full_height, static_cast<double>(kBottom) / full_height);
  text +=
      "set tics out nomirror textcolor rgb \"#303030\"\n"
      "set border linecolor rgb \"#606060\"\n"
      "set format cb \"%.3g\"\n";
  constexpr std::int64_t kFew = 10;
  if (rows < kFew) text += "set ytics 1\n";
  if (columns < kFew) text += "set xtics 1\n";
  text += format("set xrange [{:g}:{:g}]\nset yrange [{:g}:{:g}]\n", edge(map.first_column), edge(map.columns),
                 edge(map.rows), edge(map.first_row));
  text +=
      format("set cbrange [{:.6g}:{:.6g}]\nset palette defined ({})\n", low, high, signs ? kDiverging : kSequential);
  const auto file = [&](const std::string& shape) {
    return format("\"{}\" binary array=({}) skip={} format=\"%float32\" endian=little", map.data, shape, data_offset);
  };
  const std::int64_t across = std::max<std::int64_t>(1, width / columns),
                     down = std::max<std::int64_t>(1, height / rows);
  if (map.cell == 1 && map.rows * map.columns <= kMostEntries && across * down > 1) {
    text += format(
        "# An entry is {} x {} dots: a viewer that enlarges a picture softens its edges.\n"
        "array entry[{}]\nset table $entries\nplot {} using (entry[int($0)+1]=$1)\nunset table\n",
        across, down, map.rows * map.columns, file(format("{}", map.rows * map.columns)));
    const auto range = [&](const char* name, std::int64_t first, std::int64_t end, std::int64_t dots) {
      const double inside = 0.5 / static_cast<double>(dots);  // the middle of the first dot
      return format("set {} [{:.10g}:{:.10g}]\n", name, edge(first) + inside, edge(end) - inside);
    };
    text += format("set samples {}\nset isosamples {}\n", columns * across, rows * down);
    text += range("urange", map.first_column, map.columns, across) + range("vrange", map.first_row, map.rows, down);
    return text + format("plot \"++\" using 1:2:(entry[int($2+0.5)*{}+int($1+0.5)+1]) with image\n", map.columns);
  }
  const double middle = static_cast<double>(map.cell - 1) / 2;
  return text + format("plot {} dx={} dy={} origin=({:g},{:g}) \\\n     every 1:1:{}:{} with image\n",
                       file(format("{},{}", map.columns, map.rows)), map.cell, map.cell, middle, middle,
                       map.first_column, map.first_row);
}

}  // namespace polygrad

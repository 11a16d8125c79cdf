// Chart: curves in panels, written as a gnuplot script that carries its data.
//
// Where this stands: below plots.h, which says what is drawn. A script is complete: `gnuplot loss.gp` draws loss.svg
// beside it, whatever the locale, and whoever wants other colours edits it.
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace polygrad {

struct Curve {
  std::string label;                              // the same one in several panels is one entry of the legend
  std::vector<std::pair<double, double>> points;  // a gap where one is not finite (log axis: not above 0)
  int color = 0;                                  // a place in the palette of eight, which colour-blind people can tell
  bool marked = false;  // with a mark on each point, for few points; a single one always has it
};

struct Panel {
  std::string title;
  std::vector<Curve> curves;
};

struct Chart {
  std::string name;  // of the files: NAME.gp, NAME.svg
  std::string title, x_label, y_label;
  bool log_y = false;
  double high =
      std::numeric_limits<double>::infinity();  // the y axis ends here where points lie above: they are cut off
  bool same_y = false;                          // the panels have one range of y, so that they can be compared
  std::vector<Panel> panels;                    // side by side, at most four in a row
};

// Whether there is anything to draw.
bool has_points(const Chart& chart);
// The script. ValueError for a chart without points, or a name that is no file's.
std::string gnuplot_script(const Chart& chart);

// Writes NAME.gp for each chart that has points, and draws them all with one call of gnuplot, found by PATH. Returns ""
// or why there are no pictures ("gnuplot is not installed; ..."). Throws IoError where the scripts can't be written.
std::string draw_charts(const std::string& folder, const std::vector<Chart>& charts);

}  // namespace polygrad

#include "apps/training/chart.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <string_view>
#include <system_error>

#include "apps/training/gnuplot.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"

namespace polygrad {

namespace {

// Okabe and Ito's, without the yellow that white paper swallows.
constexpr const char* kPalette[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                    "#E69F00", "#56B4E9", "#000000", "#7F7F7F"};
constexpr int kColors = 8;
constexpr std::size_t kPanelsInRow = 4;
constexpr int kPanelWidth = 300, kPanelHeight = 230, kAloneWidth = 760, kAloneHeight = 440;
// Around all panels, and between them: room for what stands beside an axis.
constexpr int kLeft = 100, kRight = 26, kBottom = 58, kTop = 24, kAcross = 60, kDown = 58;
constexpr int kTitleHeight = 34, kLegendHeight = 22, kLetterWidth = 8;

bool is_drawn(const Chart& chart, const std::pair<double, double>& point) {
  return std::isfinite(point.first) && std::isfinite(point.second) && (!chart.log_y || point.second > 0);
}

bool has_points(const Chart& chart, const Curve& curve) {
  return std::any_of(curve.points.begin(), curve.points.end(),
                     [&](const auto& point) { return is_drawn(chart, point); });
}

bool has_points(const Chart& chart, const Panel& panel) {
  return std::any_of(panel.curves.begin(), panel.curves.end(),
                     [&](const Curve& curve) { return has_points(chart, curve); });
}

const char* color_of(const Curve& curve) { return kPalette[static_cast<std::size_t>(curve.color % kColors)]; }

struct Layout {
  std::size_t columns, rows;
  int width, height;
};

// The legend, above all panels: one line of text for each label, in its colour.
std::vector<const Curve*> legend_of(const Chart& chart, const std::vector<const Panel*>& panels) {
  std::vector<const Curve*> entries;
  for (const Panel* panel : panels) {
    for (const Curve& curve : panel->curves) {
      const bool known =
          std::any_of(entries.begin(), entries.end(), [&](const Curve* entry) { return entry->label == curve.label; });
      if (!known && !curve.label.empty() && has_points(chart, curve)) entries.push_back(&curve);
    }
  }
  return entries;
}

std::string legend_labels(const std::vector<const Curve*>& entries, const Layout& layout, int& lines) {
  constexpr int kMargin = 20;
  std::string text;
  int x = kMargin, line = 0, number = 1;
  for (const Curve* entry : entries) {
    const std::string label = (entry->marked ? "•–• " : "—— ") + entry->label;
    const int width = kLetterWidth * (static_cast<int>(entry->label.size()) + 5);
    if (x > kMargin && x + width > layout.width - kMargin) x = kMargin, ++line;
    // Places are set when the height is known: {0} stands for the line.
    text += format(
        "set label {} {} at screen {:.4f}, screen 1 offset 0, -{:.2f} left front noenhanced textcolor rgb \"{}\"\n",
        number++, gnuplot_text(label), static_cast<double>(x) / layout.width, 2.4 + 1.4 * static_cast<double>(line),
        color_of(*entry));
    x += width;
  }
  lines = entries.empty() ? 0 : line + 1;
  return text;
}

std::string data_block(const Chart& chart, const Curve& curve, int number) {
  std::string text = format("$curve{} << END\n", number);
  bool gap = false;
  for (const auto& point : curve.points) {
    if (is_drawn(chart, point)) {
      text += format("{}{:.10g} {:.10g}\n", gap ? "\n" : "", point.first, point.second);
      gap = false;
    } else {
      gap = text.back() == '\n' && text.find('\n') + 1 < text.size();  // none before the first point
    }
  }
  return text + "END\n";
}

bool is_marked(const Chart& chart, const Curve& curve) {
  return curve.marked || std::count_if(curve.points.begin(), curve.points.end(),
                                       [&](const auto& point) { return is_drawn(chart, point); }) == 1;
}

// Ranges that the panels share, and one that has a width where all points have one x.
std::string ranges(const Chart& chart, const std::vector<const Panel*>& panels) {
  double left = std::numeric_limits<double>::infinity(), right = -left, low = left, high = right;
  for (const Panel* panel : panels) {
    for (const Curve& curve : panel->curves) {
      for (const auto& point : curve.points) {
        if (!is_drawn(chart, point)) continue;
        left = std::min(left, point.first);
        right = std::max(right, point.first);
        low = std::min(low, point.second);
        high = std::max(high, point.second);
      }
    }
  }
  std::string text;
  if (left == right) {
    text += right > 0 ? format("set xrange [0:{:.10g}]\n", 2 * right)
                      : format("set xrange [{0:.10g}-1:{0:.10g}+1]\n", right);
  }
  if (chart.same_y && chart.log_y) {
    const double first = std::floor(std::log10(low)), last = std::max(first + 1, std::ceil(std::log10(high)));
    text += format("set yrange [1e{}:1e{}]\n", static_cast<int>(first), static_cast<int>(last));
  } else if (chart.high < high && low < chart.high) {
    text += format("set yrange [*:{:.10g}]\n", chart.high);
  } else if (chart.same_y && low < high) {
    text += format("set yrange [{:.10g}:{:.10g}]\n", low, high);
  }
  return text;
}

}  // namespace

bool has_points(const Chart& chart) {
  return std::any_of(chart.panels.begin(), chart.panels.end(),
                     [&](const Panel& panel) { return has_points(chart, panel); });
}

std::string gnuplot_script(const Chart& chart) {
  check_picture_name(chart.name);
  std::vector<const Panel*> panels;
  for (const Panel& panel : chart.panels) {
    if (has_points(chart, panel)) panels.push_back(&panel);
  }
  if (panels.empty()) throw ValueError(format("[chart] {} has no point to draw", chart.name));

  const bool alone = panels.size() == 1;
  Layout layout{std::min(panels.size(), kPanelsInRow), (panels.size() + kPanelsInRow - 1) / kPanelsInRow, 0, 0};
  const int inner_height = alone ? kAloneHeight : static_cast<int>(layout.rows) * kPanelHeight;
  layout.width = alone ? kAloneWidth : static_cast<int>(layout.columns) * kPanelWidth;
  int legend_lines = 0;
  const std::string legend = legend_labels(legend_of(chart, panels), layout, legend_lines);
  const int top = kTitleHeight + kLegendHeight * legend_lines;
  layout.height = inner_height + top;

  std::string text = format(
      "# gnuplot {0}.gp draws {0}.svg\n"
      "set terminal svg size {1},{2} font \"sans,12\" background rgb \"white\"\n"
      "set output \"{0}.svg\"\n"
      "reset\n"  // what an earlier script of the same call has set: axes and ranges
      "set encoding utf8\n"
      "unset key\n"
      "set grid linecolor rgb \"#E0E0E0\"\n"
      "set border linecolor rgb \"#606060\"\n"
      "set tics textcolor rgb \"#303030\"\n",
      chart.name, layout.width, layout.height);
  if (chart.log_y) text += "set logscale y\nset format y \"10^{%L}\"\n";
  text += ranges(chart, panels);
  int number = 0;
  for (const Panel* panel : panels) {
    for (const Curve& curve : panel->curves) {
      if (has_points(chart, curve)) text += data_block(chart, curve, number++);
    }
  }
  const auto across = [&](int pixels) { return static_cast<double>(pixels) / layout.width; };
  const auto down = [&](int pixels) { return static_cast<double>(pixels) / layout.height; };
  text += format(
      "set multiplot layout {},{} rowsfirst title {} noenhanced margins screen {:.4f},{:.4f},{:.4f},{:.4f} spacing "
      "{}\n",
      layout.rows, layout.columns, gnuplot_text(chart.title), across(kLeft), 1 - across(kRight), down(kBottom),
      1 - down(top + kTop), format("screen {:.4f},{:.4f}", across(kAcross), down(kDown)));
  text += legend;
  number = 0;
  for (std::size_t i = 0; i < panels.size(); ++i) {
    const bool left = i % kPanelsInRow == 0, bottom = i + kPanelsInRow >= panels.size();
    text += format("set title {} noenhanced offset 0,-0.7\n", gnuplot_text(panels[i]->title));
    text += format("set xlabel {} noenhanced offset 0,0.3\nset ylabel {} noenhanced offset 0.5,0\n",
                   gnuplot_text(bottom ? chart.x_label : ""), gnuplot_text(left ? chart.y_label : ""));
    std::string plots;
    for (const Curve& curve : panels[i]->curves) {
      if (!has_points(chart, curve)) continue;
      plots += format("{}$curve{} using 1:2 with {} linecolor rgb \"{}\" linewidth {}{} title {}",
                      plots.empty() ? "plot " : ", \\\n     ", number++,
                      is_marked(chart, curve) ? "linespoints" : "lines", color_of(curve), curve.marked ? "1.8" : "1.3",
                      is_marked(chart, curve) ? " pointtype 7 pointsize 0.4" : "", gnuplot_text(curve.label));
    }
    text += plots + "\n";
    if (i == 0 && !legend.empty()) text += "unset label\n";
  }
  return text + "unset multiplot\n";
}

std::string draw_charts(const std::string& folder, const std::vector<Chart>& charts) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) throw IoError(format("[plots] cannot make the folder {}: {}", folder, failure.message()));
  std::vector<std::string> scripts;
  for (const Chart& chart : charts) {
    if (!has_points(chart)) continue;
    scripts.push_back(chart.name + ".gp");
    write_file_atomically(folder + "/" + scripts.back(), gnuplot_script(chart));
  }
  if (scripts.empty()) return "there is nothing to draw yet";
  return run_gnuplot(folder, scripts);
}

}  // namespace polygrad

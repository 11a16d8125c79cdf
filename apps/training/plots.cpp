#include "apps/training/plots.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "apps/training/config.h"
#include "apps/training/maps.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

namespace {

struct Norm {
  const char* key;
  const char* title;
  const char* y_label;  // as in docs/attention.md
};
constexpr Norm kNorms[] = {
    {"attention", "Frobenius norm of the attention matrix", "‖P‖"},
    {"jacobian_s", "norm of the attention's Jacobian in the scores", "‖dP/dS‖"},
    {"jacobian_s_sq", "squared norm of the attention's Jacobian in the scores", "‖dP/dS‖²"},
    {"jacobian_q", "norm of the attention's Jacobian in the query weights", "‖dP/dW_q‖"},
    {"jacobian_q_sq", "squared norm of the attention's Jacobian in the query weights", "‖dP/dW_q‖²"},
    {"jacobian_k", "norm of the attention's Jacobian in the key weights", "‖dP/dW_k‖"},
};

// `label` of one run's curve among several: "x3, train".
std::string label_of(const std::vector<RunRows>& runs, const RunRows& run, const std::string& what) {
  return runs.size() == 1 ? what : run.label + ", " + what;
}

std::vector<std::pair<double, double>> points_of(const RunRows& run, const std::string& event, const std::string& key,
                                                 const std::string& split = "") {
  std::vector<std::pair<double, double>> points;
  for (const MetricsRow& row : run.rows) {
    if (row.event() != event) continue;
    if (!split.empty()) {
      const JsonValue* of = row.json().find("split");
      if (of == nullptr || *of != JsonValue::text(split)) continue;
    }
    points.emplace_back(row.number("epoch"), row.number(key));
  }
  return points;
}

Chart chart_over_epochs(const std::string& name, const std::string& title, const std::string& y_label, bool log_y) {
  Chart chart;
  chart.name = name;
  chart.title = title;
  chart.x_label = "epoch";
  chart.y_label = y_label;
  chart.log_y = log_y;
  return chart;
}

// Whether a linear axis would press most points flat against its bottom, as a single run that diverges does to all
// others.
bool is_far_spread(const Chart& chart) {
  std::vector<double> values;
  for (const Panel& panel : chart.panels) {
    for (const Curve& curve : panel.curves) {
      for (const auto& [x, y] : curve.points) {
        if (std::isfinite(y) && y > 0) values.push_back(y);
      }
    }
  }
  if (values.empty()) return false;
  std::sort(values.begin(), values.end());
  constexpr double kFar = 100;
  return values.back() > kFar * values[values.size() / 2];
}

// A curve that climbs far above the others, as that of a run that diverges, leaves the picture at its top, and the
// label says how far it goes: an axis that had room for it would show the others as one flat line.
void cut_off_far(Chart& chart) {
  std::vector<double> tops;
  for (const Curve& curve : chart.panels.front().curves) {
    double top = -std::numeric_limits<double>::infinity();
    for (const auto& [x, y] : curve.points) {
      if (std::isfinite(y)) top = std::max(top, y);
    }
    if (std::isfinite(top)) tops.push_back(top);
  }
  if (tops.empty()) return;
  std::sort(tops.begin(), tops.end());
  constexpr double kFar = 10;
  const double far = kFar * tops[(tops.size() - 1) / 2];
  if (!(tops.back() > far)) return;
  double high = 0;
  for (const Curve& curve : chart.panels.front().curves) {
    for (const auto& [x, y] : curve.points) {
      if (y <= far) high = std::max(high, y);
    }
  }
  constexpr double kRoom = 1.05;
  chart.high = kRoom * high;
  chart.y_label += format(" (in all up to {:.3g})", tops.back());
}

// Training and validation of each run: two runs are two colours; of one run they have a colour each.
Chart measured(const std::vector<RunRows>& runs, const std::string& key, const std::string& title,
               const std::string& y_label) {
  Chart chart = chart_over_epochs(key == "top1" ? "accuracy" : key, title, y_label, false);
  Panel panel;
  int color = 0;
  for (const RunRows& run : runs) {
    panel.curves.push_back({label_of(runs, run, "training"), points_of(run, "train", key), color, false});
    if (runs.size() == 1) ++color;
    panel.curves.push_back({label_of(runs, run, "validation"), points_of(run, "eval", key, "val"), color, true});
    ++color;
  }
  chart.panels.push_back(std::move(panel));
  if (key == "loss") cut_off_far(chart);
  return chart;
}

// `what` is the curve of a single run. Runs that are all alike, as learning rates are, have one curve: they would cover
// each other.
Chart of_training(const std::vector<RunRows>& runs, const std::string& key, const std::string& title,
                  const std::string& what, const std::string& y_label, bool log_y) {
  Chart chart = chart_over_epochs(key, title, y_label, log_y);
  Panel panel;
  int color = 0;
  for (const RunRows& run : runs) {
    panel.curves.push_back({runs.size() == 1 ? what : run.label, points_of(run, "train", key), color++, false});
  }
  const bool alike = std::all_of(panel.curves.begin(), panel.curves.end(),
                                 [&](const Curve& curve) { return curve.points == panel.curves.front().points; });
  if (panel.curves.size() > 1 && alike) {
    panel.curves.resize(1);
    panel.curves.front().label = "all runs";
  }
  chart.panels.push_back(std::move(panel));
  chart.log_y = log_y || is_far_spread(chart);
  return chart;
}

Chart of_layers(const std::vector<RunRows>& runs, const Norm& norm) {
  Chart chart = chart_over_epochs(norm.key, norm.title, norm.y_label, true);
  chart.same_y = true;
  std::map<std::int64_t, Panel> layers;
  int color = 0;
  for (const RunRows& run : runs) {
    std::map<std::int64_t, Curve> curves;
    for (const MetricsRow& row : run.rows) {
      if (row.event() != "norms") continue;
      Curve& curve = curves[static_cast<std::int64_t>(row.number("layer"))];
      curve.points.emplace_back(row.number("epoch"), row.number(norm.key));
    }
    for (auto& [layer, curve] : curves) {
      curve.label = runs.size() == 1 ? "" : run.label;
      curve.color = color;
      curve.marked = true;
      layers[layer].title = format("layer {}", layer);
      layers[layer].curves.push_back(std::move(curve));
    }
    ++color;
  }
  for (auto& [layer, panel] : layers) chart.panels.push_back(std::move(panel));
  return chart;
}

// "x3", "x3 / 16", "softmax".
std::string activation_of(const std::string& folder) {
  const Config config = Config::from_file(folder + "/config.json");
  const JsonValue& phi = config.value("attention.phi");
  const std::string name = phi.kind() == JsonValue::Kind::text ? phi.as_text() : phi.dump();
  const JsonValue& scale = config.value("attention.scale");
  if (name == "softmax" || scale == JsonValue::text("auto")) return name;
  return name + " / " + (scale.kind() == JsonValue::Kind::text ? scale.as_text() : scale.dump());
}

std::string folder_name(const std::string& folder) {
  std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // "runs/x/"
  return path.filename().string();
}

}  // namespace

std::vector<Chart> run_charts(const std::vector<RunRows>& runs) {
  std::vector<Chart> charts = {
      measured(runs, "loss", "loss", "cross-entropy"),
      measured(runs, "top1", "accuracy", "top-1, %"),
      of_training(runs, "lr", "learning rate", "lr", "learning rate", false),
      of_training(runs, "grad_norm", "norm of the gradient, before clipping", "gradient", "norm", true),
  };
  for (const Norm& norm : kNorms) charts.push_back(of_layers(runs, norm));
  return charts;
}

std::vector<RunRows> read_runs(const std::vector<std::string>& folders) {
  std::vector<RunRows> runs;
  std::set<std::string> labels;
  for (const std::string& folder : folders) {
    if (!std::filesystem::exists(folder + "/metrics.jsonl")) {
      throw IoError(format("[plots] {} is no run folder: it has no metrics.jsonl", folder));
    }
    runs.push_back({activation_of(folder), read_metrics(folder + "/metrics.jsonl")});
    labels.insert(runs.back().label);
  }
  if (labels.size() < runs.size()) {
    for (std::size_t i = 0; i < runs.size(); ++i) runs[i].label = folder_name(folders[i]);
  }
  return runs;
}

std::string plot_runs(const std::vector<std::string>& runs, const std::string& folder) {
  std::string trouble = draw_charts(folder, run_charts(read_runs(runs)));
  for (const std::string& run : runs) {
    if (folder == run + "/plots" && trouble.empty()) trouble = draw_maps(run);
  }
  return trouble;
}

}  // namespace polygrad

// The pictures of runs: what their metrics.jsonl says, as charts.
//
// Where this stands: above metrics_log.h and chart.h; a training program calls it when a run ends, and for --plot.
//
//   loss, accuracy       training and validation over the epochs
//   lr, grad_norm        of the training rows; the norm on a log axis
//   attention, jacobian_s, jacobian_s_sq, jacobian_q, jacobian_q_sq, jacobian_k
//                        the norms of docs/attention.md: a panel for each layer, a curve for each run, all on one
//                        log axis
#pragma once

#include <string>
#include <vector>

#include "apps/training/chart.h"
#include "apps/training/metrics_log.h"

namespace polygrad {

struct RunRows {
  std::string label;  // what its curves are called
  std::vector<MetricsRow> rows;
};

// The charts of these runs, those without points too. A run that was resumed, or began anew, has no row twice.
std::vector<Chart> run_charts(const std::vector<RunRows>& runs);

// Reads the runs' rows. They are called by their activation and scale where no two have the same, else by their
// folders' names. Throws IoError, naming it, for a folder that is no run.
std::vector<RunRows> read_runs(const std::vector<std::string>& folders);

// Draws runs into `folder`; returns draw_charts' text. Where that is a run's own plots/, its attention maps are drawn
// too, in its maps/.
std::string plot_runs(const std::vector<std::string>& runs, const std::string& folder);

}  // namespace polygrad

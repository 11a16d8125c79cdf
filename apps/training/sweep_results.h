// What the runs of a sweep came to: a table with mean and standard deviation over seeds, as files of its folder.
//
// Where this stands: above sweep.h and run_summary.h; apps/command/sweep_command.h refreshes the files after each run.
//
//   sweep.json       every run and every cell, for machines; it also tells that a folder is a sweep's
//   sweep.md, .csv   the table
//   sweep_file.json  the file that described the sweep
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/training/run_summary.h"
#include "apps/training/sweep.h"

namespace polygrad {

constexpr const char* kSweepResults = "sweep.json";

// Whether a sweep's folder has a file or folder of its own by that name, which no run may take.
bool is_sweep_file(std::string_view name);
// The runs that a sweep's folder knows of; empty where it is none. ConfigError where its sweep.json is damaged.
std::vector<std::string> sweep_run_names(const std::string& folder);

// The summary of a run that has not begun: status "pending".
RunSummary pending_run();

struct MeanDeviation {
  double mean = 0;
  std::optional<double> deviation;  // of the sample (n - 1); nothing for one value
  std::size_t count = 0;
};
// Nothing for no values.
std::optional<MeanDeviation> mean_deviation(const std::vector<double>& values);

// The runs of one cell. The means are over those that are done: what a run had before it diverged compares with
// nothing.
struct CellResult {
  std::size_t runs = 0, done = 0, diverged = 0, failed = 0;
  std::string status;  // "done"; "1 done, 1 diverged at step 13"
  std::optional<MeanDeviation> best_top1, test_top1, train_loss, seconds;
};
// Of each cell of the plan; `runs` are the summaries of plan.runs, in their order.
std::vector<CellResult> cell_results(const SweepPlan& plan, const std::vector<RunSummary>& runs);

// The table, as Markdown.
std::string sweep_table(const SweepPlan& plan, const std::vector<RunSummary>& runs);
// Writes the files, each in one piece. Throws IoError.
void write_sweep_results(const std::string& folder, const SweepPlan& plan, const std::vector<RunSummary>& runs);

}  // namespace polygrad

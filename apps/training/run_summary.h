// RunSummary: where a run stands and what it has reached, from its folder alone.
//
// Where this stands: above metrics_log.h and folder_lock.h; sweeps and `inspect runs` read runs with it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "apps/training/metrics_log.h"

namespace polygrad {

struct RunSummary {
  // done, diverged, stopped, failed: as the run's last end row says. running: a process holds the folder. interrupted:
  // none does, and the run was not ended by itself (killed, or the machine went down).
  std::string status = "interrupted";
  std::string why;                   // it diverged or failed
  std::int64_t step = 0;             // optimizer steps that its rows know of
  std::int64_t total_steps = 0;      // 0: not known
  double epoch = 0;                  // passes completed
  std::optional<double> best_top1;   // percent, on val
  std::int64_t best_step = 0;        // whose weights had it; 0: not known
  std::optional<double> test_top1;   // percent, of the best weights
  std::optional<double> train_loss;  // of the last train row; nothing where that is not finite
  std::optional<double> seconds;     // wall time over all resumes; only of a run that was ended by itself
};

// By the rows of metrics.jsonl alone; never "running".
RunSummary summarize_rows(const std::vector<MetricsRow>& rows);

// Of a run folder. Throws IoError where it is none, or its files can't be read: no metrics.jsonl, no row in it that can
// be read, no config.json or one that is not JSON. A run that was killed before its first row is interrupted at step 0.
RunSummary read_run(const std::string& folder);

// "done", "diverged at step 13" (the first step that could not be done), ...
std::string status_text(const RunSummary& run);

}  // namespace polygrad

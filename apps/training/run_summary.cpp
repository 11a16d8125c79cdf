#include "apps/training/run_summary.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "apps/training/folder_lock.h"
#include "apps/training/json_text.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

namespace {

std::string text_of(const MetricsRow& row, std::string_view key) {
  const JsonValue* value = row.json().find(key);
  return value != nullptr && value->kind() == JsonValue::Kind::text ? value->as_text() : "";
}

std::optional<double> finite(double value) { return std::isfinite(value) ? std::optional(value) : std::nullopt; }

void add_evaluation(RunSummary& run, const MetricsRow& row) {
  const double top1 = row.number("top1");
  if (text_of(row, "split") == "val") {
    // As the trainer chooses its best weights: a loss that is not finite never wins, and a tie keeps the earlier one.
    if (!std::isfinite(row.number("loss")) || (run.best_top1 && !(top1 > *run.best_top1))) return;
    run.best_top1 = finite(top1);
    run.best_step = row.step();
  } else if (text_of(row, "split") == "test" && text_of(row, "weights") != "last") {
    run.test_top1 = finite(top1);
  }
}

}  // namespace

RunSummary summarize_rows(const std::vector<MetricsRow>& rows) {
  RunSummary run;
  for (const MetricsRow& row : rows) {
    const std::string event = row.event();
    if (event == "start") {
      run.status = "interrupted";
      run.why.clear();
      run.seconds.reset();
      const double total = row.number("total_steps");
      if (std::isfinite(total)) run.total_steps = static_cast<std::int64_t>(total);
    } else if (event == "train") {
      run.train_loss = finite(row.number("loss"));
    } else if (event == "eval") {
      add_evaluation(run, row);
    } else if (event == "end") {
      run.status = text_of(row, "status");
      run.why = text_of(row, "why");
      run.seconds = finite(row.number("seconds"));
      if (const double best_step = row.number("best_step"); std::isfinite(best_step)) {
        // The run knows better than its rows: an evaluation's row may be lost, or the weights that it speaks of.
        run.best_top1 = finite(row.number("best_top1"));
        run.best_step = static_cast<std::int64_t>(best_step);
      } else if (!run.best_top1) {  // runs of early versions
        run.best_top1 = finite(row.number("best_top1"));
      }
    }
    if (event == "eval" && text_of(row, "split") == "test") continue;  // its step is that of the best weights
    run.step = std::max(run.step, row.step());
    if (const double epoch = row.number("epoch"); epoch > run.epoch) run.epoch = epoch;
  }
  return run;
}

RunSummary read_run(const std::string& folder) {
  const std::string metrics = folder + "/metrics.jsonl", config = folder + "/config.json";
  std::error_code error;
  if (!std::filesystem::exists(metrics, error)) {
    throw IoError(format("[run] {} has no metrics.jsonl", folder));
  }
  // Before the rows: a run that ends in between has its last row then.
  const bool locked = is_locked(folder);
  const std::vector<MetricsRow> rows = read_metrics(metrics);
  if (rows.empty() && std::filesystem::file_size(metrics, error) > 0) {
    throw IoError(format("[run] no row of {} can be read", metrics));
  }
  if (!rows.empty() && !std::filesystem::exists(config, error)) {
    throw IoError(format("[run] {} has no config.json", folder));
  }
  if (!rows.empty()) {
    try {
      read_json_file(config);
    } catch (const ConfigError& damage) {
      throw IoError(damage.what());
    }
  }
  RunSummary run = summarize_rows(rows);
  if (locked) run.status = "running";
  return run;
}

std::string status_text(const RunSummary& run) {
  return run.status == "diverged" ? format("diverged at step {}", run.step + 1) : run.status;
}

}  // namespace polygrad

#include "apps/training/sweep_results.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <system_error>

#include "apps/training/json_text.h"
#include "apps/training/text_table.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"

namespace polygrad {

namespace {

constexpr const char* kSweepFiles[] = {kSweepResults, "sweep.md", "sweep.csv", "sweep_file.json", "plots"};

JsonValue number_or_null(const std::optional<double>& value) { return value ? JsonValue::real(*value) : JsonValue(); }

JsonValue json_of(const std::optional<MeanDeviation>& value) {
  if (!value) return {};
  JsonValue object = JsonValue::object();
  object.set("mean", JsonValue::real(value->mean));
  object.set("std", number_or_null(value->deviation));
  object.set("count", JsonValue::unsigned_integer(value->count));
  return object;
}

JsonValue grid_json(const SweepPlan& plan, const SweepCell& cell) {
  JsonValue grid = JsonValue::object();
  for (std::size_t i = 0; i < plan.grid_keys.size(); ++i) grid.set(plan.grid_keys[i], cell.values[i]);
  return grid;
}

JsonValue variant_json(const SweepCell& cell) {
  return cell.variant.empty() ? JsonValue() : JsonValue::text(cell.variant);
}

std::string results_json(const SweepPlan& plan, const std::vector<RunSummary>& runs) {
  JsonValue document = JsonValue::object(), run_list = JsonValue::list(), cell_list = JsonValue::list();
  for (std::size_t i = 0; i < plan.runs.size(); ++i) {
    const SweepRun& run = plan.runs[i];
    const RunSummary& result = runs[i];
    JsonValue object = JsonValue::object();
    object.set("name", JsonValue::text(run.name));
    object.set("variant", variant_json(plan.cells[run.cell]));
    object.set("grid", grid_json(plan, plan.cells[run.cell]));
    object.set("seed", run.seed ? JsonValue::unsigned_integer(*run.seed) : JsonValue());
    object.set("status", JsonValue::text(result.status));
    object.set("step", JsonValue::integer(result.step));
    object.set("total_steps", JsonValue::integer(result.total_steps));
    object.set("best_top1", number_or_null(result.best_top1));
    object.set("best_step", JsonValue::integer(result.best_step));
    object.set("test_top1", number_or_null(result.test_top1));
    object.set("train_loss", number_or_null(result.train_loss));
    object.set("seconds", number_or_null(result.seconds));
    object.set("why", JsonValue::text(result.why));
    run_list.items().push_back(std::move(object));
  }
  const std::vector<CellResult> cells = cell_results(plan, runs);
  for (std::size_t c = 0; c < cells.size(); ++c) {
    const CellResult& cell = cells[c];
    JsonValue object = JsonValue::object();
    object.set("variant", variant_json(plan.cells[c]));
    object.set("grid", grid_json(plan, plan.cells[c]));
    object.set("runs", JsonValue::unsigned_integer(cell.runs));
    object.set("done", JsonValue::unsigned_integer(cell.done));
    object.set("diverged", JsonValue::unsigned_integer(cell.diverged));
    object.set("failed", JsonValue::unsigned_integer(cell.failed));
    object.set("status", JsonValue::text(cell.status));
    object.set("best_top1", json_of(cell.best_top1));
    object.set("test_top1", json_of(cell.test_top1));
    object.set("train_loss", json_of(cell.train_loss));
    object.set("seconds", json_of(cell.seconds));
    cell_list.items().push_back(std::move(object));
  }
  document.set("file", JsonValue::text(plan.file));
  document.set("runs", std::move(run_list));
  document.set("cells", std::move(cell_list));
  return document.dump_pretty() + "\n";
}

// The columns that name a cell; a sweep over seeds alone has none.
void add_name_columns(const SweepPlan& plan, TextTable& table) {
  const bool has_variants = !plan.cells.front().variant.empty();
  if (has_variants) table.front().emplace_back("variant");
  for (const std::string& key : plan.grid_keys) table.front().push_back(key);
  for (std::size_t c = 0; c < plan.cells.size(); ++c) {
    std::vector<std::string>& row = table[c + 1];
    if (has_variants) row.push_back(plan.cells[c].variant);
    for (const JsonValue& value : plan.cells[c].values) row.push_back(value_text(value));
  }
}

using Measured = std::optional<MeanDeviation> CellResult::*;

struct Column {
  const char* heading;  // in the table for people
  const char* name;     // in sweep.csv
  Measured value;
  int digits;
};
constexpr Column kColumns[] = {
    {"best val top-1 %", "best_top1", &CellResult::best_top1, 2},
    {"test top-1 %", "test_top1", &CellResult::test_top1, 2},
    {"training loss", "train_loss", &CellResult::train_loss, 4},
    {"seconds", "seconds", &CellResult::seconds, 1},
};

std::string with_deviation(const std::optional<MeanDeviation>& value, int digits) {
  if (!value) return "";
  if (!value->deviation) return format("{:.{}f}", value->mean, digits);
  return format("{:.{}f} ± {:.{}f}", value->mean, digits, *value->deviation, digits);
}

std::string results_csv(const SweepPlan& plan, const std::vector<RunSummary>& runs) {
  const std::vector<CellResult> cells = cell_results(plan, runs);
  TextTable table(cells.size() + 1);
  add_name_columns(plan, table);
  for (const char* word : {"runs", "done", "diverged", "failed", "status"}) table.front().emplace_back(word);
  for (const Column& column : kColumns) {
    table.front().push_back(format("{}_mean", column.name));
    table.front().push_back(format("{}_std", column.name));
  }
  for (std::size_t c = 0; c < cells.size(); ++c) {
    const CellResult& cell = cells[c];
    for (const std::size_t count : {cell.runs, cell.done, cell.diverged, cell.failed}) {
      table[c + 1].push_back(format("{}", count));
    }
    table[c + 1].push_back(cell.status);
    for (const Column& column : kColumns) {
      const std::optional<MeanDeviation>& value = cell.*column.value;
      table[c + 1].push_back(value ? json_number(value->mean) : "");
      table[c + 1].push_back(value && value->deviation ? json_number(*value->deviation) : "");
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : table) {
    for (std::size_t i = 0; i < row.size(); ++i) text += (i > 0 ? "," : "") + csv_field(row[i]);
    text += "\n";
  }
  return text;
}

std::string results_page(const SweepPlan& plan, const std::vector<RunSummary>& runs) {
  std::string text = format(
      "# Sweep: {}\n\nWritten by the program; do not edit. Means and standard deviations (n - 1) "
      "are over the runs that are done.\n\n{}",
      std::filesystem::path(plan.file).stem().string(), sweep_table(plan, runs));
  std::string notes;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].why.empty()) notes += format("- {}: {}: {}\n", plan.runs[i].name, runs[i].status, runs[i].why);
  }
  return notes.empty() ? text : text + "\n" + notes;
}

}  // namespace

bool is_sweep_file(std::string_view name) {
  return std::find(std::begin(kSweepFiles), std::end(kSweepFiles), name) != std::end(kSweepFiles);
}

std::vector<std::string> sweep_run_names(const std::string& folder) {
  const std::string path = folder + "/" + kSweepResults;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  const JsonValue document = read_json_file(path);
  const JsonValue* runs = document.kind() == JsonValue::Kind::object ? document.find("runs") : nullptr;
  std::vector<std::string> names;
  if (runs != nullptr && runs->kind() == JsonValue::Kind::list) {
    for (const JsonValue& run : runs->items()) {
      const JsonValue* name = run.kind() == JsonValue::Kind::object ? run.find("name") : nullptr;
      if (name != nullptr && name->kind() == JsonValue::Kind::text) names.push_back(name->as_text());
    }
  }
  if (names.empty()) throw ConfigError(format("[sweep] {} names no runs: it is no sweep's, or damaged", path));
  return names;
}

RunSummary pending_run() {
  RunSummary run;
  run.status = "pending";
  return run;
}

std::optional<MeanDeviation> mean_deviation(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  MeanDeviation result;
  result.count = values.size();
  const auto count = static_cast<double>(values.size());
  for (const double value : values) result.mean += value / count;
  if (values.size() == 1) return result;
  double squares = 0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  result.deviation = std::sqrt(squares / (count - 1));
  return result;
}

std::vector<CellResult> cell_results(const SweepPlan& plan, const std::vector<RunSummary>& runs) {
  struct Values {
    std::vector<double> best_top1, test_top1, train_loss, seconds;
    std::map<std::string, int> others;  // statuses but done: how many runs have each
    std::string diverged_at;
  };
  std::vector<CellResult> cells(plan.cells.size());
  std::vector<Values> values(cells.size());
  const auto add = [](std::vector<double>& to, const std::optional<double>& value) {
    if (value) to.push_back(*value);
  };
  for (std::size_t i = 0; i < runs.size(); ++i) {
    CellResult& cell = cells[plan.runs[i].cell];
    Values& its = values[plan.runs[i].cell];
    const RunSummary& run = runs[i];
    ++cell.runs;
    if (run.status == "done") {
      ++cell.done;
      add(its.best_top1, run.best_top1);
      add(its.test_top1, run.test_top1);
      add(its.train_loss, run.train_loss);
      add(its.seconds, run.seconds);
    } else if (run.status == "diverged") {
      ++cell.diverged;
      its.diverged_at += format("{}{}", its.diverged_at.empty() ? "" : ", ", run.step + 1);
    } else {
      if (run.status == "failed") ++cell.failed;
      ++its.others[run.status];
    }
  }
  for (std::size_t c = 0; c < cells.size(); ++c) {
    CellResult& cell = cells[c];
    cell.best_top1 = mean_deviation(values[c].best_top1);
    cell.test_top1 = mean_deviation(values[c].test_top1);
    cell.train_loss = mean_deviation(values[c].train_loss);
    cell.seconds = mean_deviation(values[c].seconds);
    const auto part = [&](std::size_t count, const std::string& text) {
      if (count == 0) return;
      cell.status += cell.status.empty() ? "" : ", ";
      cell.status += count == cell.runs ? text : format("{} {}", count, text);
    };
    part(cell.done, "done");
    part(cell.diverged, format("diverged at step{} {}", cell.diverged > 1 ? "s" : "", values[c].diverged_at));
    for (const auto& [status, count] : values[c].others) part(static_cast<std::size_t>(count), status);
  }
  return cells;
}

std::string sweep_table(const SweepPlan& plan, const std::vector<RunSummary>& runs) {
  const std::vector<CellResult> cells = cell_results(plan, runs);
  TextTable table(cells.size() + 1);
  add_name_columns(plan, table);
  table.front().insert(table.front().end(), {"runs", "status"});
  for (std::size_t c = 0; c < cells.size(); ++c) {
    table[c + 1].insert(table[c + 1].end(), {format("{}", cells[c].runs), cells[c].status});
  }
  for (const Column& column : kColumns) {
    const auto has = [&](const CellResult& cell) { return (cell.*column.value).has_value(); };
    if (column.value == &CellResult::test_top1 && std::none_of(cells.begin(), cells.end(), has)) continue;
    table.front().emplace_back(column.heading);
    for (std::size_t c = 0; c < cells.size(); ++c) {
      table[c + 1].push_back(with_deviation(cells[c].*column.value, column.digits));
    }
  }
  return markdown_table(table);
}

void write_sweep_results(const std::string& folder, const SweepPlan& plan, const std::vector<RunSummary>& runs) {
  write_file_atomically(folder + "/" + kSweepResults, results_json(plan, runs));
  write_file_atomically(folder + "/sweep_file.json", plan.text);
  write_file_atomically(folder + "/sweep.csv", results_csv(plan, runs));
  write_file_atomically(folder + "/sweep.md", results_page(plan, runs));
}

}  // namespace polygrad

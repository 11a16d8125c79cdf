// inspect runs: where the runs below some folders stand.
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <set>
#include <system_error>

#include "apps/inspect/inspect.h"
#include "apps/training/json_text.h"
#include "apps/training/run_summary.h"
#include "apps/training/text_table.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad::inspect {

namespace fs = std::filesystem;

namespace {

constexpr int kLevels = 2;  // runs/NAME, and runs/SWEEP/NAME

struct Listed {
  std::string path;
  RunSummary run;           // its status is "damaged" where it can't be read
  std::time_t written = 0;  // 0: not known
};

std::time_t written(const std::string& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_mtime : 0;
}

bool is_run(const std::string& folder) {
  std::error_code error;
  return fs::exists(folder + "/metrics.jsonl", error) || fs::exists(folder + "/config.json", error);
}

Listed damaged(const std::string& folder, const std::string& why) {
  Listed listed{.path = folder, .run = {}, .written = written(folder)};
  listed.run.status = "damaged";
  listed.run.why = why;
  return listed;
}

Listed look_at(const std::string& folder) {
  try {
    Listed listed{.path = folder, .run = read_run(folder), .written = written(folder + "/metrics.jsonl")};
    return listed;
  } catch (const Error& error) {
    return damaged(folder, error.what());
  }
}

// The runs in `folder`, or the folder itself where it is one.
void collect(const std::string& folder, int levels, std::vector<Listed>& runs) {
  if (is_run(folder)) {
    runs.push_back(look_at(folder));
    return;
  }
  if (levels == 0) return;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code none;
    if (name.front() != '.' && it->is_directory(none)) collect(folder + "/" + name, levels - 1, runs);
  }
  if (error) runs.push_back(damaged(folder, format("[run] {} can't be read: {}", folder, error.message())));
}

std::string time_text(std::time_t time, const char* pattern, bool utc) {
  if (time == 0) return "";
  std::tm parts = {};
  if (utc) {
    gmtime_r(&time, &parts);
  } else {
    localtime_r(&time, &parts);
  }
  char text[64];
  return {text, std::strftime(text, sizeof text, pattern, &parts)};
}

std::string number_text(const std::optional<double>& value) { return value ? json_number(*value) : ""; }

std::vector<std::string> fields_for_people(const Listed& listed) {
  const RunSummary& run = listed.run;
  const std::string when = time_text(listed.written, "%Y-%m-%d %H:%M", false);
  if (run.status == "damaged") return {listed.path, "", "", "", "", when, "damaged: " + run.why};
  return {listed.path,
          run.total_steps > 0 ? format("{} / {}", run.step, run.total_steps) : format("{}", run.step),
          format("{:.2f}", run.epoch),
          !run.best_top1       ? ""
          : run.best_step == 0 ? format("{:.2f} %", *run.best_top1)
                               : format("{:.2f} % (step {})", *run.best_top1, run.best_step),
          run.train_loss ? format("{:.4f}", *run.train_loss) : "",
          when,
          status_text(run) + (run.status == "failed" ? ": " + run.why : "")};
}

std::vector<std::string> fields_for_machines(const Listed& listed) {
  const RunSummary& run = listed.run;
  const auto count = [](std::int64_t value) { return value > 0 ? format("{}", value) : std::string(); };
  return {listed.path,
          run.status,
          run.status == "damaged" ? "" : format("{}", run.step),
          count(run.total_steps),
          run.status == "damaged" ? "" : json_number(run.epoch),
          number_text(run.best_top1),
          count(run.best_step),
          number_text(run.test_top1),
          number_text(run.train_loss),
          number_text(run.seconds),
          time_text(listed.written, "%Y-%m-%dT%H:%M:%SZ", true),
          run.why};
}

// A tab or line break within a field would be taken for an end.
std::string tsv_text(const TextTable& table) {
  std::string text;
  for (const std::vector<std::string>& row : table) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      std::string field = row[i];
      std::replace_if(
          field.begin(), field.end(), [](char c) { return c == '\t' || c == '\n' || c == '\r'; }, ' ');
      text += (i > 0 ? "\t" : "") + field;
    }
    text += "\n";
  }
  return text;
}

}  // namespace

void list_runs(const std::vector<std::string>& folders, bool tsv) {
  std::vector<Listed> runs;
  std::vector<std::string> missing, empty;
  for (std::string folder : folders) {
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    std::error_code error;
    if (!fs::is_directory(folder, error)) {
      missing.push_back(folder);
      continue;
    }
    const std::size_t before = runs.size();
    collect(folder, kLevels, runs);
    if (runs.size() == before) empty.push_back(folder);
  }
  // A folder and one inside it, both given, have runs in common: once is enough.
  std::set<fs::path> seen;
  const auto again = [&](const Listed& run) {
    std::error_code error;
    return !seen.insert(fs::weakly_canonical(run.path, error)).second;
  };
  runs.erase(std::remove_if(runs.begin(), runs.end(), again), runs.end());
  std::sort(runs.begin(), runs.end(), [](const Listed& a, const Listed& b) {
    return a.written != b.written ? a.written > b.written : a.path < b.path;
  });
  TextTable table;
  if (tsv) {
    table.push_back({"run", "status", "step", "total_steps", "epoch", "best_top1", "best_step", "test_top1",
                     "train_loss", "seconds", "written", "why"});
  } else {
    table.push_back({"run", "step", "epoch", "best val top-1", "loss", "written", "status"});
  }
  for (const Listed& run : runs) table.push_back(tsv ? fields_for_machines(run) : fields_for_people(run));
  if (tsv || !runs.empty()) std::fputs((tsv ? tsv_text(table) : aligned_text(table)).c_str(), stdout);
  std::fflush(stdout);
  for (const std::string& folder : empty) std::fprintf(stderr, "there is no run in %s\n", folder.c_str());
  std::string names;
  for (const std::string& folder : missing) names += (names.empty() ? "" : ", ") + folder;
  if (!missing.empty()) {
    throw IoError(format("[inspect] there is no folder {}; expected one with runs (vit_train makes runs/)", names));
  }
}

}  // namespace polygrad::inspect

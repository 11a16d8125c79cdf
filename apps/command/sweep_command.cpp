#include "apps/command/sweep_command.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "apps/command/signals.h"
#include "apps/command/train_run.h"
#include "apps/training/folder_lock.h"
#include "apps/training/plots.h"
#include "apps/training/run_summary.h"
#include "apps/training/sweep_results.h"
#include "apps/training/text_table.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"
#include "engine/parallel.h"

namespace polygrad {

namespace {

// Nothing is left to train; a diverged run would diverge again.
bool is_over(const RunSummary& run) { return run.status == "done" || run.status == "diverged"; }

std::string percent(const std::optional<double>& value) { return value ? format("{:.2f} %", *value) : "none"; }

class Sweep {
 public:
  explicit Sweep(const SweepFlags& flags)
      : flags_(flags),
        plan_(read_sweep(flags.file, flags.base, flags.overrides)),
        folder_(flags.out.empty() ? "runs/" + std::filesystem::path(flags.file).stem().string() : flags.out) {
    while (folder_.size() > 1 && folder_.back() == '/') folder_.pop_back();
  }

  ExitCode run() {
    const SignalWatcher signals;  // before the first thread of the pool
    if (!flags_.dry_run) remove_stale_temporaries(folder_);
    check_same_sweep(plan_, folder_);
    read_earlier_runs();
    check_configurations(signals.token());
    if (signals.signal() != 0) return stopped(signals, "stopped before the first run; nothing was written");
    if (flags_.dry_run) {
      list_runs();
      return ExitCode::done;
    }
    open_folder();
    refresh(false);
    for (std::size_t i = 0; i < plan_.runs.size(); ++i) {
      if (!is_over(results_[i]) && !signals.token().stop_requested()) {
        train(i, signals.token());
        refresh(false);
      }
    }
    refresh(true);
    if (signals.token().stop_requested()) {
      const auto over = std::count_if(results_.begin(), results_.end(), is_over);
      return stopped(signals,
                     format("stopped with {} of {} runs over; the same command goes on", over, results_.size()));
    }
    draw();
    std::fputs(sweep_table(plan_, results_).c_str(), stdout);
    std::fflush(stdout);
    return end();
  }

 private:
  void say(const std::string& line) const {
    if (!flags_.quiet) print_line(stderr, line);
  }
  std::string path_of(std::size_t i) const { return folder_ + "/" + plan_.runs[i].name; }

  // Rows that a power cut has damaged are no reason to refuse a run: it goes on from its checkpoint and mends them.
  RunSummary read(std::size_t i) const {
    std::error_code error;
    if (!std::filesystem::exists(path_of(i) + "/metrics.jsonl", error)) return pending_run();
    try {
      return read_run(path_of(i));
    } catch (const IoError&) {
      return RunSummary();
    }
  }

  void read_earlier_runs() {
    for (std::size_t i = 0; i < plan_.runs.size(); ++i) results_.push_back(read(i));
  }

  // Of what is left to train: a mistake in the last run is told before the first one has taken its hours.
  void check_configurations(const std::stop_token& stop) {
    std::vector<bool> cells(plan_.cells.size(), false);
    for (std::size_t i = 0; i < plan_.runs.size(); ++i) {
      if (!is_over(results_[i])) cells[plan_.runs[i].cell] = true;
    }
    check_cells(plan_, cells, [&] { return stop.stop_requested(); });
  }

  void list_runs() const {
    TextTable table = {{"run", "status", "settings"}};
    for (std::size_t i = 0; i < plan_.runs.size(); ++i) {
      std::string settings;
      for (const auto& [key, value] : plan_.runs[i].settings) {
        settings += format("{}{}={}", settings.empty() ? "" : " ", key, value);
      }
      table.push_back({plan_.runs[i].name, status_text(results_[i]), settings});
    }
    std::fputs(aligned_text(table).c_str(), stdout);
    print_line(stdout, format("{} runs, in {}", plan_.runs.size(), folder_));
  }

  void open_folder() {
    std::error_code error;
    std::filesystem::create_directories(folder_, error);
    if (error) throw IoError(format("[sweep] can't make the folder {}: {}", folder_, error.message()));
    lock_ = FolderLock(folder_);
  }

  // Also when the disk is full for a while: what matters is in the runs' folders.
  void refresh(bool last) const {
    try {
      write_sweep_results(folder_, plan_, results_);
    } catch (const IoError& error) {
      if (last) throw;
      say(format("warning    the table could not be written: {}", error.what()));
    }
  }

  void train(std::size_t i, const std::stop_token& stop) {
    const SweepRun& run = plan_.runs[i];
    if (!lock_.holds(folder_)) {
      throw IoError(
          format("[sweep] {} is not there any more: it was moved or removed while the sweep went on; for the "
                 "runs that are left, name its new place with --out",
                 folder_));
    }
    say(format("run        {} of {}: {}", i + 1, plan_.runs.size(), run.name));
    try {
      train_one(i, stop);
      results_[i] = read(i);
    } catch (const NumericError&) {
      results_[i] = read(i);
    } catch (...) {
      const Failure failure = describe_failure(std::current_exception());
      results_[i] = read(i);
      // A run that lost a row or a save on its way and came to its end all the same is not trained again.
      const bool failed = results_[i].status != "done";
      if (failed) results_[i].status = "failed";
      results_[i].why = failure.line.substr(failure.line.find(' ') + 1);  // without "error:"
      if (failures_++ == 0 || (failed && results_[first_failed_].status == "done")) {
        first_failure_ = failure.code;
        first_failed_ = i;
      }
    }
    const RunSummary& result = results_[i];
    say(format("{:<10} {}: {}", "", run.name,
               result.status == "done"     ? format("done, best val top-1 {}{}", percent(result.best_top1),
                                                result.why.empty() ? "" : "; " + result.why)
               : result.status == "failed" ? "failed: " + result.why
                                           : status_text(result)));
  }

  void train_one(std::size_t i, const std::stop_token& stop) const {
    const Config& config = plan_.runs[i].config;
    const NumThreadsGuard threads(threads_of(config));
    TrainerOptions options;
    options.out = path_of(i);
    options.resume = "auto";
    options.progress = make_progress(flags_.quiet);
    if (!flags_.quiet) options.report = [this](std::string_view line) { say(std::string(line)); };
    Trainer trainer(config, options);
    run_with_plots(trainer, stop, options);
  }

  // All runs in one picture each. The sweep is as good without them.
  void draw() const {
    std::vector<RunRows> runs;
    std::error_code error;
    std::vector<std::size_t> order;  // the seeds of a cell beside one another
    for (std::size_t i = 0; i < plan_.runs.size(); ++i) order.push_back(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return plan_.runs[a].cell < plan_.runs[b].cell; });
    for (const std::size_t i : order) {
      const std::string metrics = path_of(i) + "/metrics.jsonl";
      if (std::filesystem::exists(metrics, error)) runs.push_back({run_label(plan_, i), read_metrics(metrics)});
    }
    if (runs.empty()) return;
    std::string trouble;
    try {
      trouble = draw_charts(folder_ + "/plots", run_charts(runs));
    } catch (const IoError& failure) {
      trouble = failure.what();
    }
    say(trouble.empty() ? format("plots      {}/plots", folder_) : "note       " + trouble);
    say(format("table      {}/sweep.md, sweep.csv, sweep.json", folder_));
  }

  ExitCode stopped(const SignalWatcher& signals, const std::string& text) const {
    tell_failures();
    print_line(stderr, text);
    return static_cast<ExitCode>(128 + signals.signal());
  }

  ExitCode end() const {
    tell_failures();
    return first_failure_;
  }

  void tell_failures() const {
    if (failures_ == 0) return;
    const auto failed = std::count_if(results_.begin(), results_.end(),
                                      [](const RunSummary& result) { return result.status == "failed"; });
    const std::string first = format("{}: {}", plan_.runs[first_failed_].name, results_[first_failed_].why);
    print_line(stderr, error_line(failed > 0 ? format("[sweep] {} of {} runs failed; {}; the same command tries them "
                                                      "again",
                                                      failed, results_.size(), first)
                                             : format("[sweep] {} of {} runs ended with an error, though done; {}",
                                                      failures_, results_.size(), first)));
  }

  const SweepFlags& flags_;
  SweepPlan plan_;
  std::string folder_;
  FolderLock lock_;
  std::vector<RunSummary> results_;  // of plan_.runs
  std::size_t failures_ = 0, first_failed_ = 0;
  ExitCode first_failure_ = ExitCode::done;
};

}  // namespace

ExitCode sweep_command(const SweepFlags& flags) { return Sweep(flags).run(); }

}  // namespace polygrad

// inspect: what is in a file of weights, whether two of them are equal, what a model is made of, where runs stand.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "apps/command/standard_streams.h"
#include "apps/command/version_text.h"
#include "apps/inspect/inspect.h"
#include "apps/training/exit_code.h"
#include "engine/device.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/log.h"
#include "engine/parallel.h"

namespace polygrad {
namespace {

struct Flags {
  std::string file, compare, model, save, device = "auto", log_level = "warning";
  std::vector<std::string> set, folders = {"runs"};
  int threads = 0;
  bool runs = false, stats = false, tsv = false, quiet = false, version = false;
};

void add_flags(CLI::App& app, Flags& flags) {
  const char* file = "A file";
  app.add_option("FILE", flags.file, "A safetensors file, a checkpoint or a run folder")->group(file);
  app.add_option("--compare", flags.compare, "OTHER: exit 0 where both hold the same tensors, bit for bit, else 1")
      ->group(file);
  app.add_flag("--stats", flags.stats, "Also smallest, largest, mean, standard deviation, and what is not finite")
      ->group(file);
  const char* model = "A fresh model";
  app.add_option("--model", flags.model, "NAME: make this model and describe it")->group(model);
  app.add_option("--set", flags.set, "KEY=VALUE: model.*, attention.* or seed; may be repeated")
      ->group(model)
      ->allow_extra_args(false);
  app.add_flag("--tsv", flags.tsv, "One line for each tensor: name, sizes, param or buffer")->group(model);
  app.add_option("--save", flags.save, "FILE.safetensors: write its weights")->group(model);
  const char* machine = "Machine and messages";
  app.add_option("--threads", flags.threads, "Threads that compute (default: what the machine or container allows)")
      ->group(machine)
      ->check(CLI::PositiveNumber);
  app.add_option("--device", flags.device, "auto, cpu or cuda:0")->group(machine);
  app.add_flag("--quiet", flags.quiet, "Only errors and results")->group(machine);
  app.add_option("--log-level", flags.log_level, "Of the library's messages: debug, info, warning, error")
      ->group(machine)
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  app.add_flag("--version", flags.version, "Version, compiler, provider of matrix products")->group(machine);
  CLI::App* runs = app.add_subcommand("runs", "Where the runs in some folders stand: steps, accuracy, how they ended");
  runs->add_option("FOLDER", flags.folders, "Folders with runs, or with sweeps")->capture_default_str();
  runs->add_flag("--tsv", flags.tsv, "For machines: tabs between the columns, all digits");
  runs->callback([&flags] { flags.runs = true; });
  runs->fallthrough();  // --quiet and its neighbours may stand behind it
}

void check(bool right, const char* text) {
  if (!right) throw ConfigError(format("[inspect] {}; see --help", text));
}

void set_up(const Flags& flags) {
  const std::vector<std::string> levels = {"debug", "info", "warning", "error"};
  const auto lowest = std::find(levels.begin(), levels.end(), flags.quiet ? "error" : flags.log_level) - levels.begin();
  set_log_sink([lowest](LogLevel level, std::string_view message) {
    if (static_cast<std::ptrdiff_t>(level) < lowest) return;
    std::fprintf(stderr, "%.*s\n", static_cast<int>(message.size()), message.data());
  });
  if (flags.threads > 0) set_num_threads(flags.threads);
  if (flags.device != "auto") check_device(parse_device(flags.device));  // nothing here needs one
}

ExitCode run(const Flags& flags) {
  if (flags.version) {
    std::printf("%s\n", version_text("inspect").c_str());
    return ExitCode::done;
  }
  if (flags.runs) {
    const bool alone = flags.file.empty() && flags.compare.empty() && flags.model.empty() && flags.set.empty() &&
                       flags.save.empty() && !flags.stats;
    check(alone, "runs takes folders and --tsv; the flags of a file and of a fresh model do not go with it");
    set_up(flags);
    inspect::list_runs(flags.folders, flags.tsv);
    return ExitCode::done;
  }
  check(flags.file.empty() != flags.model.empty(), "expected either a file or --model NAME, or runs");
  check(!flags.model.empty() || (flags.set.empty() && !flags.tsv && flags.save.empty()),
        "--set, --tsv and --save describe a fresh model: they go with --model");
  check(!flags.file.empty() || (flags.compare.empty() && !flags.stats), "--compare and --stats go with a file");
  set_up(flags);
  if (!flags.model.empty()) {
    Config config;
    for (const std::string& assignment : flags.set) {
      const bool of_model =
          assignment.starts_with("model.") || assignment.starts_with("attention.") || assignment.starts_with("seed=");
      check(of_model, "--set takes keys of model and attention, and seed");
      check(!assignment.starts_with("model.name="), "the model's name comes from --model, not from --set model.name");
      config.set(assignment);
    }
    inspect::show_model(flags.model, config, flags.tsv, flags.save);
  } else if (!flags.compare.empty()) {
    if (!inspect::compare_files(flags.file, flags.compare)) {
      std::fprintf(stderr, "%s\n", error_line(format("[inspect] {} and {} differ", flags.file, flags.compare)).c_str());
      return ExitCode::check_failed;
    }
  } else {
    inspect::show_file(flags.file, flags.stats);
  }
  return ExitCode::done;
}

}  // namespace
}  // namespace polygrad

int main(int argc, char** argv) {
  polygrad::prepare_standard_streams();
  CLI::App app("Look into weights, checkpoints, models and runs.", "inspect");
  polygrad::Flags flags;
  polygrad::add_flags(app, flags);
  try {
    app.parse(argc, argv);
    const polygrad::ExitCode code = polygrad::run(flags);
    polygrad::check_stdout();
    return static_cast<int>(code);
  } catch (const CLI::Success& help) {  // --help
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s\n", polygrad::error_line(std::string(error.what()) + "; see --help").c_str());
    return static_cast<int>(polygrad::ExitCode::usage);
  } catch (...) {
    const polygrad::Failure failure = polygrad::describe_failure(std::current_exception());
    std::fprintf(stderr, "%s\n", failure.line.c_str());
    return static_cast<int>(failure.code);
  }
}

#include "apps/command/train_command.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>

#include "apps/command/look_command.h"
#include "apps/command/lra_command.h"
#include "apps/command/profile_command.h"
#include "apps/command/signals.h"
#include "apps/command/standard_streams.h"
#include "apps/command/sweep_command.h"
#include "apps/command/train_run.h"
#include "apps/command/version_text.h"
#include "apps/training/checkpoint_eval.h"
#include "apps/training/config.h"
#include "apps/training/config_schema.h"
#include "apps/training/device.h"
#include "apps/training/dry_run.h"
#include "apps/training/evaluate.h"
#include "apps/training/exit_code.h"
#include "apps/training/experiment.h"
#include "apps/training/presets.h"
#include "apps/training/trainer.h"
#include "data/loader.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/log.h"
#include "engine/parallel.h"
#include "models/zoo.h"

namespace polygrad {

namespace {

struct Flags {
  std::string command;  // as it was typed
  std::string config, data, out, resume, init, init_grid, eval, checkpoint, contact_sheet, sweep, device,
      log_level = "warning";
  std::vector<std::string> set, allow_change, predict, plot;
  int threads = 0;
  std::int64_t overfit = 0;
  LraFlags lra;
  bool dry_run = false, check_data = false, profile = false, list_models = false, print_schedule = false,
       help_config = false, quiet = false, version = false, allow_other_head = false;
};

// In place of CLI::PositiveNumber, which names the largest double as the upper limit.
CLI::Validator at_least_one() {
  return {[](const std::string& text) {
            std::int64_t value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            const bool right = error == std::errc() && end == text.data() + text.size() && value >= 1;
            return right ? std::string() : format("expected a whole number of at least 1, got '{}'", text);
          },
          "POSITIVE"};
}

void add_lra_flags(CLI::App& app, LraFlags& lra) {
  const char* task = "Task";
  app.add_option("--task", lra.task, lra_task_names())->group(task);
  app.add_option("--preset", lra.preset, "default, or reference: with the habits of the reference's code")
      ->capture_default_str()
      ->group(task);
  CLI::Option* generate =
      app.add_option("--generate", lra.generate,
                     "DIR: write data of the task there: listops, pathfinder (in the original formats), retrieval "
                     "(made-up pairs); --set seed=N chooses them")
          ->group(task);
  app.add_option("--count", lra.count, "How many samples --generate writes")
      ->group(task)
      ->check(at_least_one())
      ->needs(generate);
}

void add_flags(CLI::App& app, Flags& flags) {
  const char* configuration = "Configuration";
  app.add_option("--config", flags.config, "A configuration file, or a preset by its bare name")->group(configuration);
  app.add_option("--set", flags.set, "KEY=VALUE: overrides one key; may be repeated")
      ->group(configuration)
      ->allow_extra_args(false);
  app.add_option("--data", flags.data, "The data set's folder: short for --set data.root=DIR")->group(configuration);
  app.add_flag("--help-config", flags.help_config, "List all keys with type, default and meaning")
      ->group(configuration);
  const char* run = "Run";
  app.add_option("--out", flags.out, "The run folder (default: runs/<name of the configuration>)")->group(run);
  app.add_option("--resume", flags.resume, "auto, a run folder or a checkpoint: go on from there")->group(run);
  app.add_option("--allow-change", flags.allow_change,
                 "KEY: may differ from the checkpoint's when a run goes on; may be repeated")
      ->group(run)
      ->allow_extra_args(false);
  CLI::Option* init = app.add_option("--init", flags.init,
                                     "WEIGHTS.safetensors, a checkpoint or a run folder: a new run starts from these "
                                     "weights; positions are resized to the new grid")
                          ->group(run);
  app.add_flag("--allow-other-head", flags.allow_other_head,
               "--init: a classifier of another shape is left out, and the new one starts fresh")
      ->group(run)
      ->needs(init);
  app.add_option("--init-grid", flags.init_grid,
                 "HxW: rows and columns of the positions in the file of --init, where it does not say")
      ->group(run)
      ->needs(init);
  app.add_option("--overfit", flags.overfit,
                 "Train on N fixed samples until all are right (exit 0) or the steps are used up (exit 1)")
      ->group(run)
      ->check(at_least_one());
  CLI::Option* sweep =
      app.add_option("--sweep", flags.sweep,
                     "FILE.json: train all runs that it describes, variants x grid x seeds (docs/sweeps.md), or go on "
                     "with them; --out is the folder of the runs' folders (default: runs/<name of the file>)")
          ->group(run);
  for (const char* other : {"--resume", "--allow-change", "--init", "--overfit"}) sweep->excludes(other);
  const char* look = "Look";
  CLI::Option* eval = app.add_option("--eval", flags.eval,
                                     "CHECKPOINT: evaluate it, as its own configuration says; writes predictions.csv, "
                                     "per_class.csv, confusion.csv and confusion.png")
                          ->group(look);
  CLI::Option* checkpoint =
      app.add_option("--checkpoint", flags.checkpoint, "The checkpoint that --predict uses")->group(look);
  CLI::Option* predict =
      app.add_option("--predict", flags.predict,
                     "IMAGE...: what --checkpoint takes each of them for, the five most probable classes")
          ->group(look)
          ->needs(checkpoint);
  checkpoint->needs(predict);
  app.add_flag("--check-data", flags.check_data,
               "Look at every picture: counts per class, sizes, damaged, foreign and double files, mean and deviation")
      ->group(look);
  app.add_option("--contact-sheet", flags.contact_sheet,
                 "FILE.png: a picture of augmented training samples with labels")
      ->group(look);
  app.add_option("--plot", flags.plot,
                 "RUN...: draw their curves and norms; those of several runs into one picture each")
      ->group(look);
  app.add_flag("--dry-run", flags.dry_run, "Say what the run would do, try one batch, write nothing")->group(look);
  app.add_flag("--profile", flags.profile,
               "Train up to 20 steps (fewer: train.max_steps), say where their time went, write nothing")
      ->group(look);
  app.add_flag("--print-schedule", flags.print_schedule, "Print the learning rate's curve as a table")->group(look);
  app.add_flag("--list-models", flags.list_models, "Print the names of all models")->group(look);
  for (const char* other : {"--resume", "--init", "--overfit", "--dry-run", "--profile", "--print-schedule",
                            "--check-data", "--contact-sheet", "--predict", "--plot"})
    eval->excludes(other);
  for (const char* other :
       {"--eval", "--profile", "--print-schedule", "--check-data", "--contact-sheet", "--predict", "--plot"})
    sweep->excludes(other);
  const char* machine = "Machine";
  app.add_option("--threads", flags.threads, "Threads that compute (default: what the machine or container allows)")
      ->group(machine)
      ->check(at_least_one());
  app.add_option("--device", flags.device, "auto, cpu or cuda:0")->group(machine);
  const char* messages = "Messages";
  app.add_flag("--quiet", flags.quiet, "Only errors and results")->group(messages);
  app.add_option("--log-level", flags.log_level, "Of the library's messages: debug, info, warning, error")
      ->group(messages)
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  app.add_flag("--version", flags.version, "Version, compiler, provider of matrix products")->group(messages);
}

// What the flags change in a configuration.
void apply(const Flags& flags, Config& config) {
  for (const std::string& assignment : flags.set) config.set(assignment);
  if (!flags.data.empty()) config.set_value("data.root", JsonValue::text(flags.data), "--data");
  if (flags.threads > 0) config.set_value("threads", JsonValue::integer(flags.threads), "--threads");
  if (!flags.device.empty()) config.set_value("device", JsonValue::text(flags.device), "--device");
}

// The configuration that --task, --config or --resume names, or `file` in --config's place.
Config base_config(const Flags& flags, const TrainProgram& program, const std::string& file) {
  if (!flags.lra.task.empty()) return lra_task_config(flags.lra, file);
  if (!file.empty()) return Config::from_file(file);
  if (!flags.resume.empty() && flags.resume != "auto") {
    return read_checkpoint_info(find_checkpoint(flags.resume)).config;  // a run folder knows its configuration
  }
  if (program.has_tasks) throw ConfigError(format("[config] no --task; expected one of {}", lra_task_names()));
  std::string presets;
  for (const std::string& name : preset_names()) presets += (presets.empty() ? "" : ", ") + name;
  throw ConfigError(format("[config] no --config; give a file or a preset ({})", presets));
}

Config make_config(const Flags& flags, const TrainProgram& program) {
  Config config = base_config(flags, program, flags.config);
  apply(flags, config);
  return config;
}

ExitCode sweep(const Flags& flags, const TrainProgram& program) {
  if (!flags.lra.generate.empty()) throw ConfigError("[sweep] --generate writes data and trains nothing; see --help");
  SweepFlags sweep{.file = flags.sweep, .out = flags.out, .dry_run = flags.dry_run, .quiet = flags.quiet};
  apply(flags, sweep.overrides);
  sweep.base = [&](const std::string& config) {
    if (!config.empty() && !flags.config.empty()) {
      throw ConfigError(format("[sweep] --config {}: the sweep names its own configuration, {}", flags.config, config));
    }
    return base_config(flags, program, config.empty() ? flags.config : config);
  };
  return sweep_command(sweep);
}

// Beside the checkpoints of the run, or of a checkpoint that was copied elsewhere.
std::string evaluation_folder(const std::string& checkpoint, std::int64_t step) {
  const std::string run = run_folder_of(checkpoint);
  return run.empty() ? checkpoint + "-eval" : format("{}/eval/step-{:06}", run, step);
}

// An evaluation is of the model that was trained: only what it is evaluated on, and how, may be set.
void check_eval_settings(const Flags& flags) {
  for (const std::string& assignment : flags.set) {
    const std::string key = assignment.substr(0, assignment.find('='));
    if (key.rfind("data.", 0) == 0 || key.rfind("eval.", 0) == 0) continue;
    if (key == "train.batch_size" || key == "threads" || key == "device") continue;
    throw ConfigError(
        format("[eval] --set {}: the checkpoint says what the model is; expected a key of data or eval, "
               "train.batch_size, threads or device",
               key));
  }
}

ExitCode evaluate_command(const Flags& flags) {
  check_eval_settings(flags);
  const std::string checkpoint = find_checkpoint(flags.eval);
  const CheckpointInfo info = read_checkpoint_info(checkpoint);
  Config config = info.config;
  apply(flags, config);
  const NumThreadsGuard threads(threads_of(config));
  const CheckpointEval eval = evaluate_checkpoint(checkpoint, info, config);
  const std::string folder = flags.out.empty() ? evaluation_folder(checkpoint, info.state.step) : flags.out;
  if (!flags.quiet) {
    if (!eval.precision_note.empty()) print_line(stderr, format("evaluated in f32: {}", eval.precision_note));
    std::fputs(eval.data.report.c_str(), stderr);
    for (const std::string& note : eval.data.notes) print_line(stderr, "note: " + note);
    if (eval.result.skipped > 0) {
      print_line(stderr, format("{} pictures can't be used and are not counted", eval.result.skipped));
    }
    print_line(stderr, format("{} on the {} split: top-1 {:.2f} % of {}; predictions go to {}", checkpoint,
                              eval.data.split, eval.result.top1, eval.result.count, folder));
  }
  // The result first: it stands even where the files can't be written.
  print_line(stdout, eval_row(eval.data.split, info.state.step, eval.epoch, eval.result).json().dump());
  write_predictions(folder, *eval.data.dataset, eval.predictions);
  return ExitCode::done;
}

// Of the training split, in optimizer steps.
std::int64_t steps_per_epoch(const Config& config, const DataParts& data) {
  const Sampler sampler({.size = data.train->size(),
                         .batch_size = config.integer("train.batch_size"),
                         .drop_last = config.flag("train.drop_last")});
  return optimizer_steps(sampler.batches_per_epoch(), config.integer("train.accumulate"));
}

// Whether nothing of the schedule is counted in epochs.
bool counts_in_steps(const Config& config) {
  const bool has_length = !config.is_null("train.max_steps") || !config.is_null("schedule.steps");
  return config.is_null("train.epochs") && has_length && config.is_null("schedule.warmup_epochs") &&
         config.text("schedule.unit") == "step" && config.text("schedule.name") != "step";
}

void print_schedule(const Config& config) {
  if (counts_in_steps(config)) {  // known without the data
    print_line(stdout, build_schedule(config, 1).table());
    return;
  }
  const DataParts data = open_data(data_options(config));
  print_line(stdout, build_schedule(config, steps_per_epoch(config, data)).table());
}

InitOptions init_options(const Flags& flags) {
  InitOptions options{.allow_other_head = flags.allow_other_head};
  if (!flags.init_grid.empty()) options.grid = parse_grid(flags.init_grid);
  return options;
}

ExitCode train(const Flags& flags, const TrainProgram& program) {
  Config config = make_config(flags, program);
  const NumThreadsGuard threads(threads_of(config));
  const auto say = [&](std::string_view line) {
    if (!flags.quiet) print_line(stderr, line);
  };
  if (!flags.lra.generate.empty()) {
    generate_lra(flags.lra, config, say);
    return ExitCode::done;
  }
  if (flags.overfit > 0) config = overfit_config(std::move(config), flags.overfit);
  if (flags.print_schedule) {
    print_schedule(config);
    return ExitCode::done;
  }
  if (flags.check_data) {
    check_data_command(config);
    return ExitCode::done;
  }
  if (!flags.contact_sheet.empty()) {
    contact_sheet_command(config, flags.contact_sheet, flags.quiet);
    return ExitCode::done;
  }
  if (flags.dry_run) {
    print_line(stdout, dry_run(config, flags.init, init_options(flags)));
    return ExitCode::done;
  }
  if (flags.profile) {
    print_line(stdout, profile_command(config));
    return ExitCode::done;
  }
  TrainerOptions options;
  options.resume = flags.resume;
  options.out =
      flags.out.empty() && (flags.resume.empty() || flags.resume == "auto") ? "runs/" + config.name() : flags.out;
  options.allow_change = flags.allow_change;
  options.init = flags.init;
  options.init_options = init_options(flags);
  options.overfit = flags.overfit > 0;
  options.command = flags.command;
  options.progress = make_progress(flags.quiet);
  if (!flags.quiet) options.report = say;
  const SignalWatcher signals;  // before the first thread of the pool
  Trainer trainer(std::move(config), options);
  const TrainResult result = run_with_plots(trainer, signals.token(), options);
  if (result.status == "stopped") {
    print_line(stderr, format("stopped after step {}; --resume auto goes on", result.step));
    return static_cast<ExitCode>(128 + signals.signal());
  }
  if (result.already_done) print_line(stdout, format("this run is finished: {} steps", result.step));
  if (result.test) {
    print_line(stdout, format("test top-1 {:.2f} % of {} samples (best weights: step {}), {:.0f} s of training",
                              result.test->top1, result.test->count, result.best_step, result.seconds));
  } else if (result.best_top1) {
    print_line(stdout, format("val top-1 {:.2f} % (best: step {}), {:.0f} s of training", *result.best_top1,
                              result.best_step, result.seconds));
  }
  if (flags.overfit > 0 && result.best_top1.value_or(0) < 100) {
    print_line(stderr, format("--overfit: {:.1f} % of {} samples are right after {} steps",
                              result.best_top1.value_or(0), flags.overfit, result.step));
    return ExitCode::check_failed;
  }
  return ExitCode::done;
}

ExitCode run(const Flags& flags, const TrainProgram& program) {
  if (flags.version) {
    print_line(stdout, version_text(program.name));
    return ExitCode::done;
  }
  if (flags.help_config) {
    print_line(stdout, config_help());
    return ExitCode::done;
  }
  if (flags.list_models) {
    for (const ModelInfo& model : list_models())
      print_line(stdout, format("{:<15} {:<24} {}", model.name, model.alias, model.about));
    return ExitCode::done;
  }
  const LogLevel level = flags.log_level == "debug"   ? LogLevel::debug
                         : flags.log_level == "info"  ? LogLevel::info
                         : flags.log_level == "error" ? LogLevel::error
                                                      : LogLevel::warning;
  set_log_sink([level](LogLevel of, std::string_view message) {
    if (of >= level) print_line(stderr, message);
  });
  if (!flags.predict.empty()) {
    const NumThreadsGuard threads(flags.threads > 0 ? flags.threads : num_threads());
    predict_command(flags.checkpoint, flags.predict, choose_device(flags.device.empty() ? "auto" : flags.device));
    return ExitCode::done;
  }
  if (!flags.plot.empty()) {
    plot_command(flags.plot, flags.out, flags.quiet);
    return ExitCode::done;
  }
  if (!flags.sweep.empty()) return sweep(flags, program);
  return flags.eval.empty() ? train(flags, program) : evaluate_command(flags);
}

}  // namespace

int run_train_program(const TrainProgram& program, int argc, char** argv) {
  prepare_standard_streams();
  CLI::App app(program.about, program.name);
  Flags flags;
  for (int i = 0; i < argc; ++i) flags.command += (i == 0 ? "" : " ") + std::string(argv[i]);
  if (program.has_tasks) add_lra_flags(app, flags.lra);
  add_flags(app, flags);
  ExitCode code = ExitCode::done;
  try {
    app.parse(argc, argv);
    code = run(flags, program);
    if (code == ExitCode::done) check_stdout();
  } catch (const CLI::Success& help) {  // --help
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    code = ExitCode::usage;
    print_line(stderr, error_line(std::string(error.what()) + "; see --help"));
  } catch (...) {
    const Failure failure = describe_failure(std::current_exception());
    code = failure.code;
    print_line(stderr, failure.line);
  }
  return static_cast<int>(code);
}

}  // namespace polygrad

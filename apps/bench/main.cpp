// polygrad_bench: how fast, measured against what the machine can do at that moment. See bench.h.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "apps/bench/bench.h"
#include "apps/bench/ceiling.h"
#include "apps/command/version_text.h"
#include "apps/training/exit_code.h"
#include "engine/device.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/log.h"
#include "engine/parallel.h"
#include "ops/attention.h"

namespace polygrad {
namespace {

struct CommandLine {
  bench::Common common;
  bench::GemmOptions gemm;
  bench::AttentionOptions attention;
  bench::VitStepOptions vit_step;
  bench::LraStepOptions lra_step;
  bench::OpOptions op;
  bench::LadderOptions ladder;
  bench::LoaderBenchOptions loader;
  int threads = 0;
  std::string device = "auto", log_level = "warning";
};

constexpr const char* kShape = "Shape";
constexpr const char* kHow = "How it is computed";
constexpr const char* kMachine = "Machine and output";

CLI::App* add_bench(CLI::App& app, const char* name, const char* about, CommandLine& line) {
  CLI::App* sub = app.add_subcommand(name, about);
  sub->add_option("--pairs", line.common.pairs, "measurements, each beside one of the ceiling")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str()
      ->group(kMachine);
  sub->add_flag_callback("--turns", [&line] { line.common.pairs = bench::kTurns; })
      ->description("one measurement for each line of stdin, in turns with other programs; --pairs is not heard")
      ->group(kMachine);
  sub->fallthrough();  // options that all benchmarks share may stand after the name too
  return sub;
}

void add_gemm(CLI::App& app, CommandLine& line) {
  CLI::App* sub = add_bench(app, "gemm", "a matrix product (m, k) x (k, n)", line);
  sub->add_option("--m", line.gemm.m, "rows of the result")->capture_default_str()->group(kShape);
  sub->add_option("--k", line.gemm.k, "length of the sums")->capture_default_str()->group(kShape);
  sub->add_option("--n", line.gemm.n, "columns of the result")->capture_default_str()->group(kShape);
  sub->add_flag("--trans-a", line.gemm.trans_a, "the first factor lies transposed in memory")->group(kShape);
  sub->add_flag("--trans-b", line.gemm.trans_b, "the second factor lies transposed in memory")->group(kShape);
  sub->add_option("--dtype", line.gemm.dtype, "f32, bf16; on a GPU f16 too")->capture_default_str()->group(kHow);
}

void add_attention(CLI::App& app, CommandLine& line) {
  bench::AttentionOptions& options = line.attention;
  CLI::App* sub = add_bench(app, "attention", "attention, forward and backward", line);
  sub->add_option("--batch", options.batch, "sequences")->capture_default_str()->group(kShape);
  sub->add_option("--heads", options.heads, "heads")->capture_default_str()->group(kShape);
  sub->add_option("--tokens", options.tokens, "length of a sequence")->capture_default_str()->group(kShape);
  sub->add_option("--head-dim", options.head_dim, "width of a head")->capture_default_str()->group(kShape);
  sub->add_option("--lengths", options.lengths, "true length of each sequence: a,b,...; the rest is masked")
      ->delimiter(',')
      ->group(kShape);
  sub->add_option("--phi", options.phi, activation_names())->capture_default_str()->group(kHow);
  sub->add_option("--scale", options.scale, "divisor: a number, sqrt_n, n, auto")->capture_default_str()->group(kHow);
  sub->add_option("--path", options.path, "auto tiled linear materialised")->capture_default_str()->group(kHow);
  sub->add_option("--precision", options.precision, "f32, bf16; on a GPU f16 too")->capture_default_str()->group(kHow);
  sub->add_flag("--forward-only", options.forward_only, "without a gradient")->group(kHow);
}

void add_vit_step(CLI::App& app, CommandLine& line) {
  bench::VitStepOptions& options = line.vit_step;
  CLI::App* sub = add_bench(app, "vit_step", "a training step: forward, loss, backward, AdamW", line);
  sub->add_option("--model", options.model, "name of the model")->capture_default_str()->group(kShape);
  sub->add_option("--image", options.image, "height and width")->capture_default_str()->group(kShape);
  sub->add_option("--patch", options.patch, "height and width of a patch")->capture_default_str()->group(kShape);
  sub->add_option("--classes", options.classes, "classes")->capture_default_str()->group(kShape);
  sub->add_option("--batch", options.batch, "images of a step")->capture_default_str()->group(kShape);
  sub->add_option("--depth", options.depth, "blocks (default: the model's own)")
      ->check(CLI::Range(1, 1000))
      ->group(kShape);
  sub->add_option("--phi", options.phi, "attention.phi")->capture_default_str()->group(kHow);
  sub->add_option("--scale", options.scale, "attention.scale")->capture_default_str()->group(kHow);
  sub->add_option("--path", options.path, "attention.path")->capture_default_str()->group(kHow);
  sub->add_option("--precision", options.precision, "f32, bf16; on a GPU f16 too")->capture_default_str()->group(kHow);
  sub->add_flag("--profile", options.profile, "where the time goes, by op and by module, on stderr")->group(kMachine);
  sub->add_flag("!--no-shortcuts", options.shortcuts,
                "compute the last block for all tokens, not the class token alone")
      ->group(kHow);
  sub->add_flag("!--no-capture", options.capture, "on a GPU: start each kernel for itself, not a CUDA graph")
      ->group(kHow);
  sub->add_option("--data", options.data, "train on this IDX folder (default: generated images)")->group(kShape);
  sub->add_option("--steps", options.steps, "at least so many steps in all (the line has the first ten losses)")
      ->check(CLI::Range(0, 1000000))
      ->group(kMachine);
}

void add_lra_step(CLI::App& app, CommandLine& line) {
  bench::LraStepOptions& options = line.lra_step;
  CLI::App* sub = add_bench(app, "lra_step", "a training step of a Long Range Arena transformer", line);
  sub->add_option("--task", options.task, "listops, text, retrieval, image, pathfinder")
      ->capture_default_str()
      ->group(kShape);
  sub->add_option("--batch", options.batch, "samples of a step")->capture_default_str()->group(kShape);
  sub->add_option("--tokens", options.tokens, "of a sequence (default: the task's)")->group(kShape);
  sub->add_option("--lengths", options.lengths, "true lengths of the sequences, in turn: a,b,...; the rest is padding")
      ->delimiter(',')
      ->group(kShape);
  sub->add_option("--phi", options.phi, "attention.phi")->capture_default_str()->group(kHow);
  sub->add_option("--scale", options.scale, "attention.scale")->capture_default_str()->group(kHow);
  sub->add_option("--path", options.path, "attention.path")->capture_default_str()->group(kHow);
  sub->add_option("--dropout", options.dropout, "model.dropout")->capture_default_str()->group(kHow);
  sub->add_option("--attention-dropout", options.attention_dropout, "attention.dropout")
      ->capture_default_str()
      ->group(kHow);
  sub->add_flag("--profile", options.profile, "where the time goes, by op and by module, on stderr")->group(kMachine);
}

void add_op(CLI::App& app, CommandLine& line) {
  CLI::App* sub = add_bench(app, "op", "an op's forward and backward, for each element", line);
  sub->add_option("--name", line.op.name, "all, or one of: " + bench::op_names())->capture_default_str()->group(kHow);
  sub->add_option("--shape", line.op.shape, "sizes joined by x (default: the op's own)")->group(kShape);
}

void add_ops(CLI::App& app, CommandLine& line) {
  CLI::App* sub = add_bench(app, "ops", "all ops, by family: op --name all", line);
  sub->add_option("--shape", line.op.shape, "sizes joined by x (default: each op's own)")->group(kShape);
  sub->callback([&line] { line.op.name = "all"; });
}

void add_ladder(CLI::App& app, CommandLine& line) {
  CLI::App* sub = add_bench(app, "ladder", "the same work by better and better programs, rung by rung", line);
  sub->add_option("--name", line.ladder.name, "attention, layer_norm")->capture_default_str()->group(kHow);
}

void add_loader(CLI::App& app, CommandLine& line) {
  bench::LoaderBenchOptions& options = line.loader;
  CLI::App* sub = add_bench(app, "loader", "pictures a second: read, decode, resize, augment, and whole batches", line);
  sub->add_option("--data", options.data, "a folder of pictures: train/CLASS/*, or CLASS/*")->group(kShape);
  sub->add_option("--image", options.image, "height and width they are resized to")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->group(kShape);
  sub->add_option("--batch", options.batch, "pictures of a batch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(kShape);
  sub->add_option("--samples", options.samples, "at most so many pictures")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(kShape);
  sub->add_option("--workers", options.workers, "threads of the loader; 0: none")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->group(kMachine);
}

void set_log_level(const std::string& name) {
  const std::vector<std::string> names = {"debug", "info", "warning", "error"};
  const auto found = std::find(names.begin(), names.end(), name);
  const auto least = static_cast<LogLevel>(found - names.begin());
  set_log_sink([least](LogLevel level, std::string_view message) {
    if (level >= least) std::fprintf(stderr, "%.*s\n", static_cast<int>(message.size()), message.data());
  });
}

// Throws DeviceError where it can't be used, ValueError where `only_cpu` names what doesn't run there.
Device choose_device(const std::string& name, const char* only_cpu) {
  if (name == "auto") return Device::cpu();
  const Device device = parse_device(name);
  check_device(device);
  if (device.type != DeviceType::cpu && only_cpu != nullptr) {
    throw ValueError(format("[{}] --device {}: runs on the CPU; expected auto or cpu", only_cpu, name));
  }
  return device;
}

int run(int argc, char** argv) {
  CommandLine line;
  CLI::App app{
      "Measures polygrad: one JSON line on stdout for each measurement, text for people on stderr.\n"
      "Ratios are against a 2048 x 2048 x 2048 product, measured in turns with the subject; on a GPU against a larger "
      "one\n"
      "in the subject's precision.",
      "polygrad_bench"};
  app.set_version_flag("--version", [] { return version_text("polygrad_bench"); });
  app.add_option("--threads", line.threads, "threads (default: the machine's, or the container's quota)")
      ->check(CLI::Range(1, 1024))
      ->group(kMachine);
  app.add_option("--device", line.device, "auto (the CPU), cpu, cuda:0")->capture_default_str()->group(kMachine);
  app.add_option("--ceiling", line.common.ceiling, "of a GPU: rows of the square matrices of its ceiling")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str()
      ->group(kMachine);
  app.add_flag("--quiet", line.common.quiet, "no text on stderr but errors")->group(kMachine);
  app.add_option("--log-level", line.log_level, "debug, info, warning, error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str()
      ->group(kMachine);
  app.require_subcommand(1);
  add_gemm(app, line);
  add_attention(app, line);
  add_vit_step(app, line);
  add_lra_step(app, line);
  add_op(app, line);
  add_ops(app, line);
  add_ladder(app, line);
  add_loader(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::fprintf(stderr, "%s\n", error_line(error.what()).c_str());
    return static_cast<int>(ExitCode::usage);
  }
  set_log_level(line.log_level);
  line.common.device = choose_device(line.device, app.got_subcommand("ladder")     ? "ladder"
                                                  : app.got_subcommand("loader")   ? "loader"
                                                  : app.got_subcommand("lra_step") ? "lra_step"
                                                                                   : nullptr);
  if (line.threads > 0) set_num_threads(line.threads);
  std::vector<std::string> lines;
  if (app.got_subcommand("gemm")) lines = {run_gemm(line.gemm, line.common)};
  if (app.got_subcommand("attention")) lines = {run_attention(line.attention, line.common)};
  if (app.got_subcommand("vit_step")) lines = {run_vit_step(line.vit_step, line.common)};
  if (app.got_subcommand("lra_step")) lines = {run_lra_step(line.lra_step, line.common)};
  if (app.got_subcommand("op") || app.got_subcommand("ops")) lines = run_op(line.op, line.common);
  if (app.got_subcommand("ladder")) lines = run_ladder(line.ladder, line.common);
  if (app.got_subcommand("loader")) lines = {run_loader(line.loader, line.common)};
  for (const std::string& one : lines) std::printf("%s\n", one.c_str());
  return static_cast<int>(ExitCode::done);
}

}  // namespace
}  // namespace polygrad

int main(int argc, char** argv) {
  try {
    return polygrad::run(argc, argv);
  } catch (...) {
    const polygrad::Failure failure = polygrad::describe_failure(std::current_exception());
    std::fprintf(stderr, "%s\n", failure.line.c_str());
    return static_cast<int>(failure.code);
  }
}

// vit_train as its users meet it: exit codes, texts, files. Signals, kills (kills.py), full disks and
// malformed configurations have files of their own.
#include <doctest/doctest.h>

#include "apps/training/metrics_log.h"
#include "apps/training/run_folder.h"
#include "data/fashion_mnist.h"
#include "engine/safetensors.h"
#include "tests/cli/tiny_run.h"
#include "tests/support/skip.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

#define NEEDS_FASHION_MNIST                                                                             \
  if (!exists(std::string(kFashionMnistRoot) + "/train-images-idx3-ubyte.gz")) {                        \
    return skip("sample data missing: Fashion-MNIST (package dataset-fashion-mnist) is not installed"); \
  }

// The preset on a few samples, a step or two a second.
Arguments small(const std::string& out, const Arguments& more = {}) {
  Arguments arguments = {"--config",  "fashion_mnist",
                         "--set",     "train.batch_size=16",
                         "--set",     "data.limit_train=200",
                         "--set",     "data.limit_val=60",
                         "--set",     "train.log_every_steps=1",
                         "--set",     "probe.norms=false",
                         "--threads", "2",
                         "--out",     out};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

}  // namespace

TEST_CASE("wrong usage is exit 2, one line that says what is meant, and no folder") {
  const TemporaryFolder folder;
  const std::string out = folder / "run";
  struct Case {
    Arguments arguments;
    std::vector<std::string> says;
  };
  write_bytes(folder / "dup.json", "{\"model\": {\"name\": \"vit_tiny\"},\n \"model\": {\"name\": \"vit_small\"}}");
  const Case cases[] = {
      {{"--config", "fashion_mnist", "--set", "optimizer.weigth_decay=1"}, {"optimizer.weigth_decay", "weight_decay"}},
      {{"--config", "fashion_mnist", "--set", "optimizer.lr=\"fast\""}, {"optimizer.lr"}},
      {{"--config", "fashion_mnist", "--set", "optimizer=3"}, {"optimizer"}},
      {{"--config", "fashion_mnist", "--set", "model.num_heads=5"}, {"model.num_heads", "96", "5"}},
      {{"--config", "fashion_mnist", "--set", "attention.path=linear"}, {"linear"}},
      {{"--config", "fashion_mnist", "--set", "attention.phi=x", "--set", "attention.path=linear", "--set",
        "attention.dropout=0.1"},
       {"linear", "dropout"}},
      {{"--config", "fashion_mnist", "--set", "train.precision=f16"}, {"train.precision", "bf16"}},
      {{"--config", "fashion_mnist", "--set", "probe.maps=[{\"layer\":5}]"}, {"probe.maps", "layer 5", "1 to 4"}},
      {{"--config", "fashion_mnist", "--set", "model.name=vit_tinny"}, {"vit_tinny", "vit_tiny"}},
      {{"--config", folder / "none.json"}, {"none.json"}},
      {{"--config", folder / "dup.json"}, {"dup.json", "model"}},
      {{"--config", "fashion_mnist", "--no-such-flag"}, {"no-such-flag"}},
      {{}, {"--config"}},
  };
  for (const Case& c : cases) {
    Arguments arguments = c.arguments;
    arguments.insert(arguments.end(), {"--out", out});
    const Outcome outcome = train(arguments);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 2);
    for (const std::string& text : c.says) CHECK(contains(outcome.error_line(), text));
    CHECK_FALSE(exists(out));
  }
}

TEST_CASE("bf16 with the provider eigen is exit 2, and says what to do") {
  const TemporaryFolder folder;
  setenv("POLYGRAD_GEMM", "eigen", 1);
  const Outcome outcome =
      train({"--config", "fashion_mnist", "--set", "train.precision=bf16", "--out", folder / "run"});
  unsetenv("POLYGRAD_GEMM");
  CAPTURE(outcome.err);
  CHECK(outcome.code == 2);
  CHECK(contains(outcome.error_line(), "train.precision: bf16 products on the CPU are oneDNN's"));
  CHECK_FALSE(exists(folder / "run"));
}

TEST_CASE("help, version and lists") {
  CHECK(train({"--help"}).code == 0);
  CHECK(contains(train({"--help"}).out, "--resume"));
  const Outcome version = train({"--version"});
  CHECK(version.code == 0);
  CHECK(contains(version.out, "vit_train"));
  CHECK(contains(version.out, "compiler"));
  const std::string models = train({"--list-models"}).out;
  CHECK(contains(models, "vit_tiny_patch16_224"));
  for (std::size_t at = 0; at < models.size(); at = models.find('\n', at) + 1) {
    CHECK(models[at + 15] == ' ');  // two columns of names, however long these are
    CHECK(models[at + 16] != ' ');
  }
  CHECK(contains(train({"--help-config"}).out, "optimizer.weight_decay"));
}

TEST_CASE("missing data is exit 3 with the path, the layout and how to get it") {
  const TemporaryFolder folder;
  const Outcome outcome = train({"--config", "fashion_mnist", "--data", folder / "nothing", "--out", folder / "run"});
  CHECK(outcome.code == 3);
  CHECK(contains(outcome.error_line(), folder / "nothing"));
  CHECK(contains(outcome.error_line(), "train-images"));
  CHECK(contains(outcome.error_line(), "dataset-fashion-mnist"));
  CHECK_FALSE(exists(folder / "run"));
}

TEST_CASE("a device that is not there is exit 6") {
  const TemporaryFolder folder;
  for (const Arguments& more : {Arguments{}, Arguments{"--dry-run"}, Arguments{"--profile"},
                                Arguments{"--overfit", "4"}, Arguments{"--set", "train.precision=f16"}}) {
    Arguments arguments = {"--config", "fashion_mnist", "--device", "cuda:0", "--out", folder / "run"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = train(arguments);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 6);
    CHECK(contains(outcome.error_line(), "POLYGRAD_CUDA"));
    CHECK_FALSE(exists(folder / "run"));
  }
  const Outcome predict = train({"--predict", folder / "x.png", "--checkpoint", folder / "run", "--device", "cuda:0"});
  CHECK(predict.code == 6);
}

TEST_CASE("a checkpoint that is not there is exit 5") {
  const TemporaryFolder folder;
  for (const char* flag : {"--resume", "--eval"}) {
    const Outcome outcome = train({"--config", "fashion_mnist", flag, folder / "nothing", "--out", folder / "run"});
    CHECK(outcome.code == 5);
    CHECK(contains(outcome.error_line(), folder / "nothing"));
  }
}

TEST_CASE("a dry run says everything and writes nothing") {
  NEEDS_FASHION_MNIST
  const TemporaryFolder folder;
  const Outcome outcome = train(small(folder / "run", {"--dry-run"}));
  CHECK(outcome.code == 0);
  for (const char* text :
       {"blocks.0.attn.qkv", "455050", "GFLOP", "memory", "first batch", "\"weight_decay\"", "phi x3", "Sneaker",
        "settings that are not defaults: ", "products by ", "labels ", "averaged weights 0.0 MiB",
        "those of the tiled and linear paths are never stored", "MiB a checkpoint", "samples (1 x 16)", "took "}) {
    CHECK(contains(outcome.out, text));
  }
  CHECK(folder.count() == 0);
  const Outcome average = train(small(folder / "run", {"--dry-run", "--set", "train.ema_decay=0.9"}));
  CHECK(contains(average.out, "averaged weights 1.7 MiB"));
  const Outcome foreign = train(small(folder / "run", {"--dry-run", "--init", folder / "nothing"}));
  CHECK(foreign.code == 5);
  const Outcome schedule = train({"--config", "fashion_mnist", "--print-schedule"});
  CHECK(schedule.code == 0);
  CHECK(contains(schedule.out, "0.002"));
}

TEST_CASE("a profile says where the time goes and writes nothing") {
  NEEDS_FASHION_MNIST
  const TemporaryFolder folder;
  const Outcome outcome = train(small(folder / "run", {"--profile", "--set", "train.max_steps=2"}));
  CHECK(outcome.code == 0);
  for (const char* text : {"2 steps after 3 to warm up; 2 threads", "attention_qkv", "backward", "blocks.*.mlp",
                           "GFLOP/s", "ceiling", "next batch", "16 images", "page faults", "waiting for batches"}) {
    CAPTURE(text);
    CHECK(contains(outcome.out, text));
  }
  CHECK(folder.count() == 0);
  const Outcome both = train({"--eval", folder / "x", "--profile"});
  CHECK(both.code == 2);
  CHECK(contains(both.error_line(), "--profile"));
}

TEST_CASE(
    "a run writes its folder; a second one goes on or is refused; --eval prints the same digits with any threads") {
  NEEDS_FASHION_MNIST
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  const Outcome first = train(small(run, {"--set", "train.max_steps=12", "--set", "train.eval_every_steps=4"}));
  CAPTURE(first.err);
  REQUIRE(first.code == 0);
  CHECK(first.err.find('\r') == std::string::npos);  // no progress line where stderr is no terminal
  for (const char* file : {"config.json", "metrics.jsonl", "metrics.csv", "checkpoints/latest/model.safetensors",
                           "checkpoints/latest/state.safetensors", "checkpoints/latest/state.json",
                           "checkpoints/best/model.safetensors"}) {
    CHECK(exists(run + "/" + file));
  }
  const std::vector<MetricsRow> starts = rows_of(run, "start");
  REQUIRE(starts.size() == 1);
  CHECK(starts[0].number("threads") == 2);
  CHECK(starts[0].number("train_samples") == 200);

  CHECK(train(small(run, {"--set", "train.max_steps=12"})).code == 2);  // the folder exists
  const Outcome again =
      train(small(run, {"--set", "train.max_steps=12", "--set", "train.eval_every_steps=4", "--resume", "auto"}));
  CHECK(again.code == 0);
  CHECK(contains(again.out, "finished"));
  CHECK(rows_of(run, "start").size() == 1);

  std::string lines[2];
  for (const int threads : {1, 2}) {
    const Outcome eval = train({"--eval", run + "/checkpoints/best", "--threads", std::to_string(threads), "--out",
                                folder / ("eval" + std::to_string(threads))});
    CAPTURE(eval.err);
    REQUIRE(eval.code == 0);
    lines[threads - 1] = eval.last_line();
    for (const char* file : {"predictions.csv", "per_class.csv", "confusion.csv"}) {
      CHECK(exists(folder / ("eval" + std::to_string(threads) + "/" + file)));
    }
  }
  CHECK(lines[0] == lines[1]);
  CHECK(contains(lines[0], "\"event\":\"eval\""));
  const std::vector<MetricsRow> evals = rows_of(run, "eval");
  CHECK(evals.back().json().find("split")->as_text() == "test");
  CHECK(contains(lines[0], "\"top1\":" + json_number(evals.back().number("top1"))));
  const std::string predictions = read_bytes(folder / "eval1/predictions.csv");
  CHECK(std::count(predictions.begin(), predictions.end(), '\n') == 61);
  CHECK(predictions.rfind("path,label,predicted,probability\n", 0) == 0);
}

TEST_CASE("on a terminal each message stands once, and the line tells how long it will take") {
  NEEDS_FASHION_MNIST
  const TemporaryFolder folder;
  std::string command = bin_dir() + "/vit_train";
  for (const std::string& argument : small(folder / "run", {"--set", "train.max_steps=40"})) command += " " + argument;
  const Outcome outcome = run_program("/usr/bin/script", {"-qec", command, "/dev/null"});
  CAPTURE(outcome.out);
  CHECK(outcome.code == 0);
  const std::size_t machine = outcome.out.find("machine ");
  REQUIRE(machine != std::string::npos);
  CHECK(outcome.out.find("machine ", machine + 1) == std::string::npos);
  CHECK(contains(outcome.out, "eta "));
}

TEST_CASE("--eval keeps to the checkpoint's model and says what it can't evaluate on") {
  NEEDS_FASHION_MNIST
  const TemporaryFolder folder;
  REQUIRE(train(small(folder / "run", {"--set", "train.max_steps=1"})).code == 0);
  const std::string checkpoint = folder / "run/checkpoints/latest";
  CHECK(train({"--eval", checkpoint, "--set", "attention.phi=x"}).code == 2);
  CHECK(train({"--eval", checkpoint, "--overfit", "3"}).code == 2);
  const Outcome missing = train({"--eval", checkpoint, "--data", folder / "nothing"});
  CHECK(missing.code == 3);
  CHECK(contains(missing.error_line(), folder / "nothing"));
  CHECK(train({"--eval", checkpoint}).code == 0);
  CHECK(exists(folder / "run/eval/step-000001/predictions.csv"));
}

TEST_CASE("a divergence is exit 4 and leaves finite weights") {
  NEEDS_FASHION_MNIST
  const TemporaryFolder folder;
  const Outcome outcome =
      train(small(folder / "run",
                  {"--set", "optimizer.lr=100", "--set", "schedule.name=constant", "--set", "schedule.warmup_epochs=0",
                   "--set", "attention.scale=1", "--set", "train.max_steps=300", "--set", "train.epochs=300", "--set",
                   "train.eval_every_steps=0", "--set", "train.checkpoint_every_steps=1"}));
  CHECK(outcome.code == 4);
  CHECK(contains(outcome.error_line(), "diverged at step"));
  CHECK(rows_of(folder / "run", "end").back().json().find("status")->as_text() == "diverged");
  for (const auto& [name, tensor] : load_safetensors(folder / "run/checkpoints/latest/model.safetensors")) {
    CHECK(all_finite(tensor));
  }
}

TEST_CASE("--overfit gets there, or says that it did not") {
  NEEDS_FASHION_MNIST
  const TemporaryFolder folder;
  CHECK(train({"--config", "fashion_mnist", "--overfit", "16", "--out", folder / "run"}).code == 0);
  CHECK(train({"--config", "fashion_mnist", "--overfit", "16", "--set", "optimizer.lr=1e-12", "--set",
               "train.max_steps=5", "--out", folder / "never"})
            .code == 1);
}

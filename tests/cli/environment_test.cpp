// What a run meets around it: closed and full streams, folders that can't be written, full disks, a second process.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "apps/training/run_folder.h"
#include "tests/cli/tiny_run.h"
#include "tests/support/skip.h"

using namespace polygrad;
using namespace polygrad::testing;
namespace fs = std::filesystem;

namespace {

// Runs a script in which `folder`/disk is a file system of `size` of its own; code 99 where that can't be.
Outcome with_disk(const TemporaryFolder& folder, const std::string& size, const std::string& script) {
  const std::string disk = folder / "disk";
  return run_program("/usr/bin/unshare", {"-rm", "/bin/bash", "-c",
                                          "mkdir " + disk + " && mount -t tmpfs -o size=" + size + " tmpfs " + disk +
                                              " 2>/dev/null || exit 99\ncd " + disk + "\n" + script});
}

bool no_mounts(const Outcome& outcome) { return outcome.code == 99 || contains(outcome.err, "unshare failed"); }

// The lines of stderr that tell of a fault.
std::int64_t error_lines(const Outcome& outcome) {
  std::int64_t count = outcome.err.rfind("error: ", 0) == 0;
  for (std::size_t at = 0; (at = outcome.err.find("\nerror: ", at)) != std::string::npos; ++at) ++count;
  return count;
}

// Each line of the run's files is what the program means to write there.
void check_files(const std::string& run) {
  const std::string text = read_bytes(run + "/metrics.jsonl");
  CHECK(static_cast<std::int64_t>(read_metrics(run + "/metrics.jsonl").size()) ==
        std::count(text.begin(), text.end(), '\n'));
  CHECK(rows_of(run, "train").size() == 16);
  CHECK(read_bytes(run + "/metrics.csv").rfind("event,", 0) == 0);
  CHECK(read_bytes(run + "/config.json").rfind("{", 0) == 0);
  CHECK(status_of(run) == "done");
}

}  // namespace

TEST_CASE(
    "closed streams, and a stderr that is full, end nothing, and nothing that is printed lands in a file of the run") {
  for (const char* redirection : {">&-", "2>&-", "<&-", "<&- >&- 2>&-", "2>/dev/full"}) {
    CAPTURE(redirection);
    const TemporaryFolder folder;
    CHECK(shell(shell_command(tiny_run(folder, "run", {"probe.norms=true"})) + " " + redirection).code == 0);
    check_files(folder / "run");
    CHECK(read_bytes(folder / "run/norms.csv").rfind("step,", 0) == 0);
  }
}

TEST_CASE("a reader that goes away ends nothing; a full stdout costs the exit code, not the run") {
  const TemporaryFolder folder;
  const Outcome piped = shell("set -o pipefail; " + shell_command(tiny_run(folder, "piped")) + " 2>&1 | true");
  CHECK(piped.code == 0);
  check_files(folder / "piped");

  const Outcome full = shell(shell_command(tiny_run(folder, "full")) + " >/dev/full");
  CHECK(full.code == 5);
  CHECK(contains(full.error_line(), "stdout"));
  check_files(folder / "full");

  const std::string eval = bin_dir() + "/vit_train --eval " + (folder / "full") + " --out " + (folder / "eval");
  const Outcome lost = shell(eval + " >/dev/full");
  CHECK(lost.code == 5);
  CHECK(contains(lost.error_line(), "stdout"));
  CHECK(exists(folder / "eval/predictions.csv"));
  CHECK(shell(eval + " >&-").code == 0);
  CHECK(shell("set -o pipefail; " + eval + " | true").code == 0);
  for (const char* more : {"--list-models", "--help-config", "--version"}) {
    CHECK(shell(bin_dir() + "/vit_train " + more + " >/dev/full").code == 5);
  }
  CHECK(shell(bin_dir() + "/inspect " + (folder / "full/checkpoints/latest") + " >/dev/full").code == 5);
}

TEST_CASE("a run folder that can't be made or written is exit 5, with one line that names it") {
  const TemporaryFolder folder;
  write_bytes(folder / "file", "");
  const Outcome outcome = train(tiny_run(folder, "file/run"));
  CHECK(outcome.code == 5);
  CHECK(contains(outcome.error_line(), folder / "file/run"));
  CHECK(train(tiny_run(folder, "new/parent/run")).code == 0);  // parents are made
  check_files(folder / "new/parent/run");

  // Another run holds it.
  Process first("vit_train", tiny_run(folder, "held", {"train.max_steps=1000000"}));
  REQUIRE(wait_for_steps(first, folder / "held", 1));
  const Outcome second = train(tiny_run(folder, "held", {"train.max_steps=1000000"}, {"--resume", "auto"}));
  CHECK(second.code == 5);
  CHECK(contains(second.error_line(), "another process is writing into"));
  CHECK(first.running());
}

TEST_CASE("a file system without write permission is exit 5, for a new run and for one that goes on") {
  const TemporaryFolder folder;
  const Arguments stopped = tiny_run(folder, "disk/run", {"train.epochs=4", "train.max_steps=8"});
  const Arguments longer = tiny_run(folder, "disk/run", {"train.epochs=4", "train.max_steps=12"},
                                    {"--resume", "auto", "--allow-change", "train.max_steps"});
  const Outcome outcome = with_disk(folder, "16m",
                                    shell_command(stopped) + " 2>/dev/null || exit 90\n" +                           //
                                        "mount -o remount,ro " + (folder / "disk") + " || exit 99\n" +               //
                                        shell_command(longer) + "\n[ $? = 5 ] || exit 91\n" +                        //
                                        shell_command(tiny_run(folder, "disk/new")) + "\n[ $? = 5 ] || exit 92\n" +  //
                                        bin_dir() + "/vit_train --eval " + (folder / "disk/run") + " --out " +
                                        (folder / "eval") + " 2>/dev/null || exit 93");
  if (no_mounts(outcome)) return skip("kernel forbids mounts: no file system can be mounted for this test");
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(error_lines(outcome) == 2);
  CHECK(contains(outcome.err, "Read-only file system"));
}

TEST_CASE(
    "a disk that fills up: training goes on, each failed save is said, the end is exit 5, the old checkpoint loads") {
  const TemporaryFolder folder;
  // A checkpoint takes some 100 KB; keeping all of them needs twice the disk.
  const Arguments arguments =
      tiny_run(folder, "disk/run", {"train.checkpoint_every_steps=1", "train.keep_last=1000", "train.ema_decay=0.5"});
  const Outcome outcome = with_disk(
      folder, "1m",
      shell_command(arguments) + "\ncode=$?\n" + bin_dir() + "/inspect " + (folder / "disk/run/checkpoints/latest") +
          " >/dev/null || exit 98\n" + bin_dir() + "/vit_train --quiet --eval " + (folder / "disk/run") + " --out " +
          (folder / "eval") + " || exit 97\n[ -z \"$(ls -A run/checkpoints | grep unfinished)\" ] || exit 96\n" +
          "grep -c '\"event\":\"train\"' run/metrics.jsonl\nexit $code");
  if (no_mounts(outcome)) return skip("kernel forbids mounts: no file system can be mounted for this test");
  CAPTURE(outcome.err);
  CHECK(outcome.code == 5);
  CHECK(error_lines(outcome) == 1);
  CHECK(contains(outcome.error_line(), "the last checkpoint, of step 16, could not be saved"));
  CHECK(contains(outcome.error_line(), "space"));
  CHECK(contains(outcome.err, "could not be saved, the next is tried when it is due"));
  CHECK(contains(outcome.out, "\"event\":\"eval\""));
}

TEST_CASE("a disk that is full for a while: rows wait, saves are tried again, the run ends done and exit 5") {
  const TemporaryFolder folder;
  const Arguments arguments = tiny_run(
      folder, "disk/run",
      {"train.checkpoint_every_steps=50", "train.max_steps=800", "train.epochs=100", "train.eval_every_steps=0"});
  // Filled to the last byte behind the first checkpoint, freed when a save has failed.
  const std::string err = folder / "err";
  const std::string script = shell_command(arguments) + " 2>" + err +
                             " &\nrun=$!\n"
                             "until [ -e run/checkpoints/latest ]; do kill -0 $run || exit 90; sleep 0.01; done\n"
                             "until grep -q 'could not be saved' " +
                             err +
                             "; do kill -0 $run || exit 91; cat /dev/zero >>filler 2>/dev/null; sleep 0.01; done\n"
                             "rm filler\nwait $run\ncode=$?\ncat " +
                             err +
                             " >&2\ngrep -c '\"event\":\"train\"' run/metrics.jsonl\n"
                             "tail -n 1 run/metrics.jsonl\nexit $code";
  const Outcome outcome = with_disk(folder, "2m", script);
  if (no_mounts(outcome)) return skip("kernel forbids mounts: no file system can be mounted for this test");
  CAPTURE(outcome.err);
  CAPTURE(outcome.out);
  CHECK(outcome.code == 5);
  CHECK(error_lines(outcome) == 1);
  CHECK(contains(outcome.error_line(), "the run is done and its last checkpoint is saved, but"));
  CHECK(outcome.out.rfind("800\n", 0) == 0);
  CHECK(contains(outcome.last_line(), "\"status\":\"done\""));
}

TEST_CASE("rows that find no room to the end are exit 5: the run is done and saved") {
  const TemporaryFolder folder;
  // No file may have more than 100 KB: the checkpoints' have less, metrics.jsonl would have more.
  const Arguments arguments = tiny_run(
      folder, "run",
      {"train.max_steps=800", "train.epochs=100", "train.checkpoint_every_steps=0", "train.eval_every_steps=0"});
  const Outcome outcome = shell("ulimit -f 100; " + shell_command(arguments));
  CAPTURE(outcome.err);
  CHECK(outcome.code == 5);
  CHECK(contains(outcome.err, "rows wait in memory until there is room"));
  CHECK(contains(outcome.error_line(), "the run is done and saved, but not all rows could be written"));
  CHECK(checkpoint_step(folder / "run/checkpoints/latest") == 800);
  CHECK(rows_of(folder / "run", "train").size() > 100);
  CHECK(rows_of(folder / "run", "train").size() < 800);
}

TEST_CASE("a run folder that is removed during the run is not made anew: exit 5, and it says so") {
  const TemporaryFolder folder;
  Process process(
      "vit_train",
      tiny_run(folder, "run", {"train.max_steps=600", "train.checkpoint_every_steps=100", "train.eval_every_steps=0"}));
  REQUIRE(wait_for_steps(process, folder / "run", 3));
  fs::rename(folder / "run", folder / "gone");
  fs::remove_all(folder / "gone");
  const Outcome outcome = process.wait();
  CAPTURE(outcome.err);
  CHECK(outcome.code == 5);
  CHECK(contains(outcome.error_line(), "is not there any more"));
  CHECK_FALSE(exists(folder / "run"));
}

TEST_CASE("a damaged checkpoint is exit 5 to whatever reads it, and no older one takes its place") {
  const TemporaryFolder folder;
  const Arguments arguments = tiny_run(folder, "run", {"train.checkpoint_every_steps=4"});
  REQUIRE(train(arguments).code == 0);
  const std::string newest = folder / "run/checkpoints/step-000016";
  std::string weights = read_bytes(newest + "/model.safetensors");
  weights[weights.size() / 2] = static_cast<char>(weights[weights.size() / 2] ^ 1);
  write_bytes(newest + "/model.safetensors", weights);
  const Arguments resume = tiny_run(folder, "run", {"train.checkpoint_every_steps=4"}, {"--resume", "auto"});
  for (const Arguments& reads : {resume, Arguments{"--eval", folder / "run"},
                                 Arguments{"--predict", folder / "none.png", "--checkpoint", folder / "run"}}) {
    const Outcome outcome = train(reads);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 5);
    CHECK(contains(outcome.error_line(), newest + "/model.safetensors is damaged"));
    CHECK(error_lines(outcome) == 1);
  }
  CHECK_FALSE(exists(folder / "run/eval"));
  const std::string older = folder / "run/checkpoints/step-000012";
  CHECK(train(tiny_run(folder, "run", {"train.checkpoint_every_steps=4"}, {"--resume", older})).code == 0);
  CHECK(read_bytes(newest + "/model.safetensors") != weights);
}

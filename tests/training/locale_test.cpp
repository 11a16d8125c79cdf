// A host whose locale writes 1.234,5: what a run writes and reads back does not change.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <clocale>
#include <cstdlib>
#include <locale>

#include "apps/training/plots.h"
#include "apps/training/trainer.h"
#include "engine/file.h"
#include "tests/support/temporary_folder.h"
#include "tests/training/small_run.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

class CommaNumbers : public std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

// While it lives, C++ streams write commas and groups, and so does C where the machine has a German locale or can make
// one.
class CommaLocale {
 public:
  explicit CommaLocale(const std::string& folder) : old_(std::locale()) {
    const std::string make =
        "localedef -i de_DE -f UTF-8 " + folder + "/de_DE.UTF-8 >/dev/null 2>&1";  // where there are sources of locales
    if (std::setlocale(LC_ALL, "de_DE.UTF-8") == nullptr && std::system(make.c_str()) == 0) {
      setenv("LOCPATH", folder.c_str(), 1);
      std::setlocale(LC_ALL, "de_DE.UTF-8");
      unsetenv("LOCPATH");
    }
    std::locale::global(std::locale(std::locale::classic(), new CommaNumbers));
    if (std::string(std::localeconv()->decimal_point) != ",")
      MESSAGE("no German locale here: streams alone write commas");
  }
  ~CommaLocale() {
    std::locale::global(old_);
    std::setlocale(LC_ALL, "C");
  }
  CommaLocale(const CommaLocale&) = delete;
  CommaLocale& operator=(const CommaLocale&) = delete;

 private:
  std::locale old_;
};

// 1234 samples: a count with a group.
Config config_of_run() {
  return small_config({"train.epochs=1", "probe.norms=true", "optimizer.lr=0.0025", "train.ema_decay=0.9",
                       "train.batch_size=200", "data.limit_train=1234567", "seed=1234567"});
}

void make_run(const std::string& folder, std::int64_t stop_after) {
  const Config config = config_of_run();
  Trainer trainer(config, small_experiment(config, 1234), {.out = folder, .resume = "auto"});
  std::stop_source stop;
  trainer.on_step = [&](const StepInfo& step) {
    if (step.step == stop_after) stop.request_stop();
  };
  trainer.run(stop.get_token());
}

// Without the lines, keys and columns that a clock decides.
std::vector<std::string> rows_of(const std::string& folder) {
  std::vector<std::string> rows;
  for (const MetricsRow& row : read_metrics(folder + "/metrics.jsonl")) {
    JsonValue kept = row.json();
    std::erase_if(kept.members(), [](const JsonValue::Member& member) {
      return member.first == "samples_per_s" || member.first == "data_wait" || member.first == "seconds" ||
             member.first == "time";
    });
    rows.push_back(kept.dump());
  }
  return rows;
}

}  // namespace

TEST_CASE("with a decimal comma and grouping in the host's locale, all files are the same and read back") {
  const TemporaryFolder folder;
  const std::string point = folder / "point", comma = folder / "comma";
  make_run(point, 3);
  make_run(point, -1);
  plot_runs({point}, point + "/plots");
  {
    const CommaLocale locale(folder.path());
    make_run(comma, 3);
    make_run(comma, -1);  // config, rows and checkpoint are read back
    plot_runs({comma}, comma + "/plots");
    CHECK(rows_of(comma) == rows_of(point));
    Config set;
    set.set("optimizer.lr=0.125");
    CHECK(set.number("optimizer.lr") == 0.125);
  }
  for (const char* file :
       {"config.json", "norms.csv", "checkpoints/latest/model.safetensors", "checkpoints/latest/state.safetensors"}) {
    CHECK_MESSAGE(read_file(comma + "/" + file) == read_file(point + "/" + file), file);
  }
  const std::string csv = read_file(comma + "/metrics.csv");
  const std::string header = csv.substr(0, csv.find('\n'));
  for (std::size_t at = 0, end; (end = csv.find('\n', at)) != std::string::npos; at = end + 1) {
    const auto commas = [&](std::size_t from, std::size_t to) { return std::count(&csv[from], &csv[to], ','); };
    CHECK(commas(at, end) == commas(0, header.size()));
  }
  std::size_t scripts = 0;
  for (const auto& entry : std::filesystem::directory_iterator(point + "/plots")) {
    if (entry.path().extension() != ".gp") continue;
    ++scripts;
    std::string other = read_file(comma + "/plots/" + entry.path().filename().string());
    for (std::size_t at = 0; (at = other.find(comma, at)) != std::string::npos;) other.replace(at, comma.size(), point);
    const std::string expected = read_file(entry.path().string());
    CHECK_MESSAGE(other.size() == expected.size(), entry.path().filename().string());
  }
  CHECK(scripts > 0);
}

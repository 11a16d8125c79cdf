#include "apps/command/train_run.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include "apps/training/plots.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/parallel.h"

namespace polygrad {

void print_line(std::FILE* file, std::string_view line) {
  std::fprintf(file, "%.*s\n", static_cast<int>(line.size()), line.data());
  std::fflush(file);
}

Progress make_progress(bool quiet) {
  if (quiet || !isatty(STDERR_FILENO)) return Progress();
  winsize size = {};
  const int columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  return Progress(
      [](std::string_view text) {
        std::fwrite(text.data(), 1, text.size(), stderr);
        std::fflush(stderr);
      },
      columns);
}

int threads_of(const Config& config) {
  const std::int64_t threads = config.integer("threads");
  return threads > 0 ? static_cast<int>(threads) : num_threads();
}

TrainResult run_with_plots(Trainer& trainer, std::stop_token stop, const TrainerOptions& options) {
  const auto draw = [&] {
    const std::string run = trainer.folder();
    if (run.empty()) return;
    std::string trouble;
    try {
      trouble = plot_runs({run}, run + "/plots");
    } catch (const IoError& error) {  // the run itself is done and saved
      trouble = error.what();
    }
    if (options.report) options.report(trouble.empty() ? format("plots      {}/plots", run) : "note       " + trouble);
  };
  try {
    TrainResult result = trainer.run(std::move(stop));
    draw();
    return result;
  } catch (const NumericError&) {
    draw();
    throw;
  }
}

}  // namespace polygrad

// One training run as the programs do it: progress on the terminal, pictures at its end.
//
// Where this stands: program code above apps/training/trainer.h; train_command.cpp trains one run with it,
// sweep_command.cpp many.
#pragma once

#include <cstdio>
#include <stop_token>
#include <string_view>

#include "apps/training/config.h"
#include "apps/training/progress.h"
#include "apps/training/trainer.h"

namespace polygrad {

// The line and a line break, at once.
void print_line(std::FILE* file, std::string_view line);
// Writes to stderr; silent where that is no terminal, or `quiet`.
Progress make_progress(bool quiet);
// The configuration's threads; where it leaves them open, what the machine or container allows.
int threads_of(const Config& config);
// Runs the trainer, then draws the run's pictures, also of one that diverged: there they matter most. A run without
// them is as good. Throws what Trainer::run throws.
TrainResult run_with_plots(Trainer& trainer, std::stop_token stop, const TrainerOptions& options);

}  // namespace polygrad

// --sweep FILE.json: trains the runs of a sweep one after the other, and goes on where an earlier call was cut off.
//
// Where this stands: program code above apps/training/sweep.h (what the runs are) and train_run.h (one run).
// What users may expect of it: docs/sweeps.md.
#pragma once

#include <string>

#include "apps/training/config.h"
#include "apps/training/exit_code.h"
#include "apps/training/sweep.h"

namespace polygrad {

struct SweepFlags {
  std::string file;  // a path, or the bare name of a sweep that comes with polygrad
  std::string out;   // the sweep's folder; "": runs/<name of the file>
  bool dry_run = false, quiet = false;
  SweepBase base = {};
  Config overrides = {};  // what the command line sets for all runs
};

// Prints the table on stdout, or with dry_run the list of runs. A run that diverges is a result; one that fails lets
// the others go on, and its exit code is the sweep's in the end. Throws where the sweep can't begin: nothing is written
// then.
ExitCode sweep_command(const SweepFlags& flags);

}  // namespace polygrad

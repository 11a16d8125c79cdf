// The command line that the training programs share: flags, start-up, exit codes.
//
// Where this stands: between the mains and polygrad::training. This is program code: it prints and installs handlers.
#pragma once

#include <string>
#include <vector>

namespace polygrad {

struct TrainProgram {
  std::string name;        // "vit_train"
  std::string about;       // one sentence for --help
  bool has_tasks = false;  // of the Long Range Arena: --task, --preset, --generate
};

// Runs the program and returns its exit code (apps/training/exit_code.h).
int run_train_program(const TrainProgram& program, int argc, char** argv);

}  // namespace polygrad

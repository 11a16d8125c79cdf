// lra_train: trains and evaluates the transformers of the Long Range Arena. All of it is in apps/command and
// polygrad::training.
#include "apps/command/train_command.h"

int main(int argc, char** argv) {
  return polygrad::run_train_program(
      {.name = "lra_train",
       .about = "Train a transformer with any attention activation on a task of the Long Range Arena.",
       .has_tasks = true},
      argc, argv);
}

// vit_train: trains and evaluates vision transformers. All of it is in apps/command and polygrad::training.
#include "apps/command/train_command.h"

int main(int argc, char** argv) {
  return polygrad::run_train_program(
      {.name = "vit_train", .about = "Train a vision transformer with any attention activation."}, argc, argv);
}

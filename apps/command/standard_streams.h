// The three standard streams as programs need them: open, and with their losses told.
//
// Where this stands: program code, called by the mains. Read next: train_command.cpp.
#pragma once

namespace polygrad {

// Opens /dev/null for each of stdin, stdout and stderr that is closed. Else the next file that is opened, a log say,
// would get the number of stdout, and everything printed would land in it. From then on a write that fails (the reader
// went away, the file may grow no more) is an error where it happens and no signal. Call it before any file is opened.
void prepare_standard_streams();

// To be called last: throws IoError where something printed to stdout is lost (a full disk). A reader that went away
// wanted no more, and is none.
void check_stdout();

}  // namespace polygrad

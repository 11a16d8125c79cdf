#include "apps/command/standard_streams.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "engine/error.h"

namespace polygrad {

void prepare_standard_streams() {
  for (const int number : {SIGPIPE, SIGXFSZ}) std::signal(number, SIG_IGN);
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) < 0) {
      // The lowest free number is given out: this one, as those below it are open by now.
      [[maybe_unused]] const int same = ::open("/dev/null", O_RDWR);
    }
  }
}

void check_stdout() {
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  struct stat status = {};
  const bool has_reader =
      ::fstat(STDOUT_FILENO, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode));
  if (lost && !has_reader) {
    throw IoError("[stdout] not everything could be printed; is the disk full? All else is done");
  }
}

}  // namespace polygrad

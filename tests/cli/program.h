// Running the programs of build/bin as a user does: arguments in, exit code and both streams out.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"

namespace polygrad::testing {

struct Outcome {
  int code = -1;  // exit code; 128 + signal where one ended it
  std::string out, err;

  // The last line of stdout.
  std::string last_line() const {
    std::string text = out;
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text.substr(text.rfind('\n') + 1);
  }
  // The one line of stderr that begins with "error: "; "" where there is none or more than one.
  std::string error_line() const {
    std::string found;
    std::size_t begin = 0;
    while (begin < err.size()) {
      const std::size_t end = std::min(err.find('\n', begin), err.size());
      const std::string line = err.substr(begin, end - begin);
      if (line.rfind("error: ", 0) == 0) {
        if (!found.empty()) return "";
        found = line;
      }
      begin = end + 1;
    }
    return found;
  }
};

// A program that runs: its streams go to files of its own folder.
class Process {
 public:
  Process(const std::string& program, const std::vector<std::string>& arguments) {
    const std::string path = program.find('/') == std::string::npos ? bin_dir() + "/" + program : program;
    std::vector<char*> argv{const_cast<char*>(path.c_str())};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    const std::string out = folder_ / "out", err = folder_ / "err";
    std::fflush(stdout);  // the child must not print what we had buffered
    pid_ = fork();
    if (pid_ == 0) {
      if (!std::freopen("/dev/null", "r", stdin) || !std::freopen(out.c_str(), "w", stdout) ||
          !std::freopen(err.c_str(), "w", stderr)) {
        _exit(126);
      }
      execvp(argv[0], argv.data());
      _exit(127);
    }
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      wait();
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) const { kill(pid_, number); }
  bool running() {
    if (pid_ <= 0) return false;
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == 0) return true;
    end(status);
    return false;
  }
  Outcome wait() {
    int status = 0;
    if (pid_ > 0 && waitpid(pid_, &status, 0) == pid_) end(status);
    return {code_, read_bytes(folder_ / "out"), read_bytes(folder_ / "err")};
  }

 private:
  void end(int status) {
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    pid_ = -1;
  }
  TemporaryFolder folder_;
  pid_t pid_ = -1;
  int code_ = -1;
};

inline Outcome run_program(const std::string& program, const std::vector<std::string>& arguments) {
  return Process(program, arguments).wait();
}

inline bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

}  // namespace polygrad::testing

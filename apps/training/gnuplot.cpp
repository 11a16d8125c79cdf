#include "apps/training/gnuplot.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <system_error>

#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"

namespace polygrad {

namespace {

// gnuplot's own words, for the message.
std::string first_line(const std::string& path) {
  try {
    const std::string content = read_file(path);
    const std::size_t begin = content.find_first_not_of(" \n\t");
    if (begin == std::string::npos) return "";
    return content.substr(begin, content.find('\n', begin) - begin);
  } catch (const IoError&) {
    return "";
  }
}

// Runs gnuplot in `folder`; its words go into a file there. -1: there is no gnuplot.
int spawn_gnuplot(const std::string& folder, const std::vector<std::string>& scripts, const std::string& words) {
  std::vector<std::string> arguments = {"gnuplot"};
  arguments.insert(arguments.end(), scripts.begin(), scripts.end());
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, words.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  // A program that waits for signals blocks them in its threads; gnuplot must not inherit that.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);

  pid_t child = 0;
  const int failure = posix_spawnp(&child, "gnuplot", &actions, &attributes, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failure != 0) return -1;
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

std::string run_gnuplot(const std::string& folder, const std::vector<std::string>& scripts) {
  const std::string words = std::filesystem::absolute(folder) / "gnuplot.log";
  const int status = spawn_gnuplot(folder, scripts, words);
  std::string trouble;
  if (status == -1 || status == 127) {
    trouble = format("gnuplot is not installed; its scripts are in {}", folder);
  } else if (status != 0) {
    trouble = format("gnuplot failed with status {} in {}: {}", status, folder, first_line(words));
  }
  std::error_code ignored;
  std::filesystem::remove(words, ignored);
  return trouble;
}

std::string gnuplot_text(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return result + "\"";
}

void check_picture_name(const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos || name.front() == '.') {
    throw ValueError(format("[chart] '{}' is no name of a file", name));
  }
}

}  // namespace polygrad

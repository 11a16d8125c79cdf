// Running a piece of a test where it can do no harm: in a child process, or in a thread with a small stack.
#pragma once

#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>

namespace polygrad::testing {

// The exit code of f() in a forked child; 200 where it threw; 256 + n where signal n ended it. The child's doctest
// checks are lost, so f reports by its result.
inline int run_in_child(const std::function<int()>& f) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    int code = 200;
    try {
      code = f();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "in the child: %s\n", error.what());
    }
    _exit(code);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) throw std::runtime_error("waitpid failed");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

// The exit code of one test case of this executable in a process of its own, where no thread has run yet: a forked
// child must not touch a thread pool that its parent has used. Mark the case with doctest::skip(), so that it runs only
// so.
inline int run_in_new_process(const std::string& test_case) {
  return run_in_child([&] {
    const std::string filter = "--test-case=" + test_case;
    execl("/proc/self/exe", "test", filter.c_str(), "--no-skip", static_cast<char*>(nullptr));
    return 201;
  });
}

// From now on this process may map at most `bytes` more than it has.
inline void limit_further_memory(std::size_t bytes) {
  long pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld", &pages) != 1)
    throw std::runtime_error("cannot read /proc/self/statm");
  std::fclose(file);
  rlimit limit = {};
  limit.rlim_cur = limit.rlim_max = static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + bytes;
  if (setrlimit(RLIMIT_AS, &limit) != 0) throw std::runtime_error("setrlimit failed");
}

// From now on a new thread's stack has `bytes` where its creator asks for none: with limit_further_memory only so many
// threads can start.
inline void set_default_stack(std::size_t bytes) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  const bool failed =
      pthread_attr_setstacksize(&attributes, bytes) != 0 || pthread_setattr_default_np(&attributes) != 0;
  pthread_attr_destroy(&attributes);
  if (failed) throw std::runtime_error("cannot set the stack's size");
}

// While true, no thread can start in this process: its stack would be larger than the address space. (A limit on
// processes does not bind root.)
inline void refuse_threads(bool refuse) { set_default_stack(refuse ? std::size_t{1} << 50 : std::size_t{8} << 20); }

// Runs f in a thread with a stack of `bytes`, and rethrows what it throws.
inline void run_with_stack(std::size_t bytes, const std::function<void()>& f) {
  struct Call {
    const std::function<void()>& f;
    std::exception_ptr error;
  } call{f, nullptr};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, bytes);
  pthread_t thread;
  const auto body = [](void* argument) -> void* {
    Call& inner = *static_cast<Call*>(argument);
    try {
      inner.f();
    } catch (...) {
      inner.error = std::current_exception();
    }
    return nullptr;
  };
  const int failed = pthread_create(&thread, &attributes, body, &call);
  pthread_attr_destroy(&attributes);
  if (failed != 0) throw std::runtime_error("pthread_create failed");
  pthread_join(thread, nullptr);
  if (call.error) std::rethrow_exception(call.error);
}

}  // namespace polygrad::testing

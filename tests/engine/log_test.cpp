// The log: silent until an application asks, and safe to replace at any time.
#include "engine/log.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "engine/factory.h"
#include "tests/support/isolation.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;

TEST_CASE("silent by default") {
  const testing::TemporaryFolder folder;
  CHECK(testing::run_in_child([&] {
          if (std::freopen((folder / "out").c_str(), "w", stdout) == nullptr) return 1;
          if (std::freopen((folder / "err").c_str(), "w", stderr) == nullptr) return 1;
          log_message(LogLevel::error, "nobody asked");
          zeros({10}).fill_(1);
          std::fflush(nullptr);
          return 0;
        }) == 0);
  CHECK(testing::read_bytes(folder / "out").empty());
  CHECK(testing::read_bytes(folder / "err").empty());
}

TEST_CASE("a sink receives level and text until it is replaced") {
  std::vector<std::string> first, second;
  set_log_sink([&](LogLevel level, std::string_view text) {
    first.push_back(std::to_string(static_cast<int>(level)) + std::string(text));
  });
  log_message(LogLevel::debug, "a");
  log_message(LogLevel::error, "b");
  set_log_sink([&](LogLevel, std::string_view text) { second.emplace_back(text); });
  log_message(LogLevel::info, "c");
  set_log_sink(nullptr);
  log_message(LogLevel::info, "d");
  CHECK(first == std::vector<std::string>{"0a", "3b"});
  CHECK(second == std::vector<std::string>{"c"});
}

TEST_CASE("a sink may log, and replace itself") {
  int calls = 0;
  set_log_sink([&](LogLevel, std::string_view text) {
    ++calls;
    if (text == "outer") log_message(LogLevel::info, "inner");
    if (text == "inner") set_log_sink(nullptr);
  });
  log_message(LogLevel::info, "outer");
  log_message(LogLevel::info, "outer");
  CHECK(calls == 2);
}

TEST_CASE("several threads log while the sink is replaced") {
  std::atomic<int> received{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) log_message(LogLevel::info, "text");
    });
  }
  for (int i = 0; i < 100; ++i) {
    set_log_sink([&](LogLevel, std::string_view) { ++received; });
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  set_log_sink(nullptr);
  CHECK(received <= 2000);
}

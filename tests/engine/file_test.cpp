// Atomic writes: the old file or the whole new one, and nothing left behind; whole-file reads.
#include "engine/file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <thread>
#include <vector>

#include "engine/error.h"
#include "engine/safetensors.h"
#include "tests/support/isolation.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using doctest::Contains;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

TEST_CASE("until commit the target is the old file, after it the new one") {
  const TemporaryFolder folder;
  const std::string path = folder / "state.json";
  write_bytes(path, "old");
  {
    AtomicFile file(path);
    file.write("new", 3);
    file.write(" content", 8);
    CHECK(read_bytes(path) == "old");
    CHECK(folder.count() == 2);
    file.commit();
    CHECK(read_bytes(path) == "new content");
    CHECK_THROWS_AS(file.write("x", 1), InternalError);
    CHECK_THROWS_AS(file.commit(), InternalError);
  }
  CHECK(folder.count() == 1);
  {
    AtomicFile file(path);
    file.write("never", 5);
  }
  CHECK(read_bytes(path) == "new content");
  CHECK(folder.count() == 1);
}

TEST_CASE("a writer that is killed leaves the old file") {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  write_file_atomically(path, "old");
  const int code = testing::run_in_child([&] {
    AtomicFile file(path);
    file.write("half of the ne", 14);
    std::raise(SIGKILL);
    return 0;
  });
  CHECK(code == 256 + SIGKILL);
  CHECK(read_bytes(path) == "old");
}

TEST_CASE("a name that a killed writer left behind is passed over") {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  // In a container the next run has the same process id and counts from the same number.
  CHECK(testing::run_in_child([&] {
          std::string taken;
          {
            const AtomicFile probe(path);
            for (const auto& entry : std::filesystem::directory_iterator(folder.path())) taken = entry.path().string();
          }
          const std::size_t dash = taken.rfind('-');
          const int count = std::stoi(taken.substr(dash + 1));
          for (int i = 1; i <= 3; ++i)
            write_bytes(taken.substr(0, dash + 1) + std::to_string(count + i), "left behind");
          write_file_atomically(path, "new");
          return read_bytes(path) == "new" && folder.count() == 4 ? 0 : 1;
        }) == 0);
}

TEST_CASE("temporaries of killed writers are removed, those of living ones and other files are not") {
  const TemporaryFolder folder;
  for (const char* name : {"a.tmp-12-0", "b.json.tmp-7-123"}) write_bytes(folder / name, "left behind");
  for (const char* name : {"a", "a.tmp-12", "a.tmp-12-", "a.tmp-x-1", "a.tmp-1-2-3", "tmp-1-2", "a.tmp-1-2~"}) {
    write_bytes(folder / name, "the user's");
  }
  REQUIRE(mkdir((folder / "folder.tmp-1-2").c_str(), 0777) == 0);
  REQUIRE(symlink((folder / "a").c_str(), (folder / "link.tmp-1-2").c_str()) == 0);
  AtomicFile living(folder / "living");
  living.write("whole", 5);
  CHECK(remove_stale_temporaries(folder.path()) == 2);
  CHECK(folder.count() == 10);
  living.commit();
  CHECK(read_bytes(folder / "living") == "whole");
  CHECK(testing::run_in_child([&] {
          AtomicFile file(folder / "state");
          std::raise(SIGKILL);
          return 0;
        }) == 256 + SIGKILL);
  CHECK(folder.count() == 11);
  CHECK(remove_stale_temporaries(folder.path()) == 1);
  CHECK(folder.count() == 10);
  CHECK(remove_stale_temporaries(folder / "none") == 0);
}

TEST_CASE("files are written while another thread clears the folder up") {
  const TemporaryFolder folder;
  std::atomic<bool> done{false};
  std::thread cleaner([&] {
    while (!done) remove_stale_temporaries(folder.path());
  });
  for (int i = 0; i < 300; ++i) write_file_atomically(folder / "state", std::to_string(i));
  done = true;
  cleaner.join();
  CHECK(read_bytes(folder / "state") == "299");
  CHECK(folder.count() == 1);
}

TEST_CASE("several writers of one file: one whole content wins") {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&, i] {
      for (int k = 0; k < 20; ++k) write_file_atomically(path, std::string(100'000, static_cast<char>('a' + i)));
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string content = read_bytes(path);
  CHECK(content == std::string(100'000, content[0]));
  CHECK(folder.count() == 1);
}

TEST_CASE("large, empty, and in the current folder") {
  const TemporaryFolder folder;
  const std::string large(5'000'000, 'x');
  write_file_atomically(folder / "large", large);
  CHECK(read_file(folder / "large") == large);
  write_file_atomically(folder / "empty", "");
  CHECK(read_file(folder / "empty").empty());
  CHECK(testing::run_in_child([&] {
          if (chdir(folder.path().c_str()) != 0) return 1;
          write_file_atomically("here", "text");
          return read_file("here") == "text" ? 0 : 2;
        }) == 0);
}

TEST_CASE("errors name the file and the reason") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(write_file_atomically(folder / "no/file", "x"), Contains("/no/file': No such file or directory"),
                       IoError);
  CHECK_THROWS_WITH_AS(read_file(folder / "none"), Contains("/none': No such file or directory"), IoError);
  CHECK_THROWS_WITH_AS(read_file(folder.path()), Contains("Is a directory"), IoError);
  CHECK_THROWS_WITH_AS(sync_folder(folder / "none"), Contains("No such file or directory"), IoError);
  // A folder in the target's place: the rename fails, and the temporary goes.
  REQUIRE(mkdir((folder / "taken").c_str(), 0777) == 0);
  CHECK_THROWS_WITH_AS(write_file_atomically(folder / "taken", "x"), Contains("/taken'"), IoError);
  CHECK(folder.count() == 1);
}

TEST_CASE("read_file keeps to its limit") {
  const TemporaryFolder folder;
  write_bytes(folder / "ten", "0123456789");
  CHECK(read_file(folder / "ten", 10) == "0123456789");
  CHECK_THROWS_WITH_AS(read_file(folder / "ten", 9), Contains("expected at most 9 bytes"), IoError);
  CHECK_THROWS_WITH_AS(read_file("/dev/zero", 1000), Contains("too large"), IoError);
  CHECK_FALSE(read_file("/proc/self/status").empty());  // its stated size is 0
}

TEST_CASE("a write that fails in the middle keeps the old file and leaves no temporary") {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  write_file_atomically(path, "old");
  CHECK(testing::run_in_child([&] {
          std::signal(SIGXFSZ, SIG_IGN);
          const rlimit limit = {4096, 4096};
          setrlimit(RLIMIT_FSIZE, &limit);
          try {
            write_file_atomically(path, std::string(100'000, 'x'));
          } catch (const IoError& error) {
            const bool named = std::string(error.what()).find(path + "': File too large") != std::string::npos;
            return named && read_bytes(path) == "old" && folder.count() == 1 ? 0 : 1;
          }
          return 2;
        }) == 0);
}

TEST_CASE("a full disk: the text says so, the old file stays") {
  const TemporaryFolder folder;
  constexpr int kNoMount = 77;
  const int code = testing::run_in_child([&] {
    // A file system of 256 KiB, in a mount namespace of the child's own.
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return kNoMount;
    if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return kNoMount;
    if (mount("none", folder.path().c_str(), "tmpfs", 0, "size=256k") != 0) return kNoMount;
    const std::string path = folder / "model.safetensors";
    save_safetensors(path, {{"x", Tensor::from_vector(std::vector<float>{1, 2, 3})}});
    try {
      save_safetensors(path, {{"x", Tensor::from_vector(std::vector<float>(1'000'000, 1.f))}});
    } catch (const IoError& error) {
      const std::string text = error.what();
      if (text.find("no space left on device while writing '" + path) == std::string::npos) return 1;
      if (folder.count() != 1) return 2;
      return load_safetensors(path)[0].second.to_vector<float>() == std::vector<float>{1, 2, 3} ? 0 : 3;
    }
    return 4;
  });
  if (code == kNoMount) return testing::skip("kernel forbids mounts: no small file system to fill");
  CHECK(code == 0);
}

TEST_CASE("a file of any size is read a piece at a time") {
  const TemporaryFolder folder;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{1} << 20, (std::size_t{5} << 19) + 3}) {
    std::string content(size, 'a');
    for (std::size_t i = 0; i < size; i += 1000) content[i] = static_cast<char>(i / 1000);
    write_bytes(folder / "file", content);
    std::string read;
    for_each_piece(folder / "file", [&](std::string_view piece) {
      CHECK_FALSE(piece.empty());
      read += piece;
    });
    CHECK(read == content);
  }
  CHECK_THROWS_AS(for_each_piece(folder / "none", [](std::string_view) {}), IoError);
}

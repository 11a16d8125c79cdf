// Folders: natural order, what is left out and counted, links that go round in circles.
#include "data/file_tree.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "engine/error.h"
#include "tests/support/isolation.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using namespace polygrad::testing;
using doctest::Contains;

namespace {

std::vector<std::string> paths(const std::vector<FoundFile>& files) {
  std::vector<std::string> result;
  for (const FoundFile& file : files) result.push_back(file.path);
  return result;
}

}  // namespace

TEST_CASE("numbers in names count as numbers, the rest byte by byte") {
  std::vector<std::string> names = {"10", "1", "b2", "2", "b10", "a", "Z", "01", "b2x", "", "x1y2", "x1y10", "x01y3"};
  std::sort(names.begin(), names.end(), natural_less);
  CHECK(names ==
        std::vector<std::string>{"", "01", "1", "2", "10", "Z", "a", "b2", "b2x", "b10", "x1y2", "x01y3", "x1y10"});
  // A strict order: no two different names are equal, none is before itself.
  for (const std::string& a : names) {
    for (const std::string& b : names) CHECK(natural_less(a, b) + natural_less(b, a) == (a == b ? 0 : 1));
  }
  CHECK(natural_less("99999999999999999999998", "99999999999999999999999"));
}

TEST_CASE("pictures are found in every depth, in one order; what is hidden or foreign is counted") {
  const TemporaryFolder folder;
  for (const char* inner : {"deep/er", ".ipynb_checkpoints", "@eaDir", "__MACOSX"}) {
    std::filesystem::create_directories(folder / inner);
  }
  for (const char* name :
       {"10.jpg", "2.JPEG", "1.png", "deep/er/3.bmp", ".hidden.jpg", "._1.png", "Thumbs.db", ".DS_Store",
        "@eaDir/1.jpg", ".ipynb_checkpoints/1.png", "README.txt", "noending", "x.webp"}) {
    write_bytes(folder / name, "abc");
  }
  TreeNotes notes;
  const std::vector<FoundFile> files = find_pictures(folder.path(), notes);
  CHECK(paths(files) == std::vector<std::string>{"1.png", "2.JPEG", "10.jpg", "deep/er/3.bmp", "x.webp"});
  CHECK(files[0].bytes == 3);
  CHECK(notes.hidden == 7);
  CHECK(notes.foreign == std::vector<std::string>{folder / "README.txt", folder / "noending"});
  CHECK(notes.lines.empty());
  std::int64_t loose = 0;
  CHECK(find_folders(folder.path(), notes, &loose) == std::vector<std::string>{"deep"});
  CHECK(loose == 4);
  CHECK_THROWS_WITH_AS(find_pictures(folder / "none", notes), Contains("none can't be read: No such file"), DataError);
}

TEST_CASE("links are followed, but not back to a folder above; a link to nowhere stays, to fail by name") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "set/a/inner");
  std::filesystem::create_directories(folder / "elsewhere");
  write_bytes(folder / "set/a/1.png", "x");
  write_bytes(folder / "elsewhere/2.png", "x");
  std::filesystem::create_directory_symlink("../../elsewhere", folder / "set/a/linked");
  std::filesystem::create_directory_symlink("..", folder / "set/a/up");
  std::filesystem::create_directory_symlink("../..", folder / "set/a/inner/around");
  std::filesystem::create_directory_symlink("../../..", folder / "set/a/inner/farther");
  std::filesystem::create_directory_symlink(".", folder / "set/a/self");
  std::filesystem::create_directory_symlink("self2", folder / "set/a/self2");
  std::filesystem::create_symlink("gone.png", folder / "set/a/dangling.png");
  TreeNotes notes;
  CHECK(paths(find_pictures(folder / "set/a", notes)) ==
        std::vector<std::string>{"1.png", "dangling.png", "linked/2.png"});
  REQUIRE(notes.lines.size() == 5);
  int nowhere = 0;
  for (const std::string& line : notes.lines) {
    const bool round = line.find("self2: a link that leads nowhere; left out") != std::string::npos;
    nowhere += round;
    CHECK_MESSAGE((round || line.find("a link to a folder above itself") != std::string::npos), line);
  }
  CHECK(nowhere == 1);
  CHECK(notes.foreign.empty());
  std::filesystem::create_directory_symlink("moved away", folder / "set/b");  // a class whose pictures are gone
  TreeNotes more;
  CHECK(find_folders(folder / "set", more) == std::vector<std::string>{"a"});
  REQUIRE(more.lines.size() == 1);
  CHECK(more.lines[0].find("set/b: a link that leads nowhere") != std::string::npos);
}

TEST_CASE("folders that may not be read, or not be looked into, are errors with the system's reason") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "set/listed/class");
  std::filesystem::create_directories(folder / "set/closed");
  std::filesystem::permissions(folder / "set/listed", std::filesystem::perms::owner_read |
                                                          std::filesystem::perms::group_read |
                                                          std::filesystem::perms::others_read);
  std::filesystem::permissions(folder / "set/closed", std::filesystem::perms::none);
  std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
  const auto says = [&](const std::string& inner, const std::string& text) {
    return run_in_child([&] {
      if (geteuid() == 0 && setuid(65534) != 0) return 2;  // to root every folder is open
      TreeNotes notes;
      try {
        find_pictures(folder / inner, notes);
      } catch (const DataError& error) {
        return std::string(error.what()).find(text) != std::string::npos ? 0 : 3;
      }
      return 4;
    });
  };
  CHECK(says("set/closed", "set/closed can't be read: Permission denied") == 0);
  CHECK(says("set/listed", "set/listed/class can't be read: Permission denied") == 0);
  for (const char* inner : {"set/listed", "set/closed"}) {
    std::filesystem::permissions(folder / inner, std::filesystem::perms::owner_all);
  }
}

TEST_CASE("files by their ending, in natural order; others and folders are named, hidden ones passed over") {
  const TemporaryFolder folder;
  for (const char* name : {"10.txt", "9.txt", "b.TXT", ".hidden.txt", "notes.md"}) write_bytes(folder / name, "x");
  std::filesystem::create_directories(folder / "more.txt");
  TreeNotes notes;
  CHECK(find_files(folder.path(), ".txt", notes) == std::vector<std::string>{"9.txt", "10.txt"});
  CHECK(notes.hidden == 1);
  CHECK(notes.foreign == std::vector<std::string>{folder / "b.TXT", folder / "more.txt", folder / "notes.md"});
  CHECK_THROWS_AS(find_files(folder / "none", ".txt", notes), DataError);
}

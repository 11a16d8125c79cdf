// Lines of a file: every byte comes out, in the right line, with its number and place.
#include "data/line_reader.h"

#include <doctest/doctest.h>

#include "engine/error.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using polygrad::testing::TemporaryFolder;

namespace {

struct Line {
  std::string text;
  std::int64_t number;
  std::uint64_t offset;
  bool operator==(const Line&) const = default;
};

std::vector<Line> lines_of(const std::string& content) {
  const TemporaryFolder folder;
  testing::write_bytes(folder / "file", content);
  LineReader reader(folder / "file");
  std::vector<Line> lines;
  std::string_view line;
  while (reader.next(line)) lines.push_back({std::string(line), reader.number(), reader.offset()});
  CHECK(!reader.next(line));  // the end stays the end
  return lines;
}

}  // namespace

TEST_CASE("line ends of both kinds, a last line without one, empty lines, other bytes") {
  CHECK(lines_of("").empty());
  CHECK(lines_of("\n") == std::vector<Line>{{"", 1, 0}});
  CHECK(lines_of("a\nb") == std::vector<Line>{{"a", 1, 0}, {"b", 2, 2}});
  CHECK(lines_of("a\r\n\r\nb\r\n") == std::vector<Line>{{"a", 1, 0}, {"", 2, 3}, {"b", 3, 5}});
  CHECK(lines_of("a\rb\n") == std::vector<Line>{{"a\rb", 1, 0}});
  CHECK(lines_of(std::string("\0\xFF\"\n", 4)) == std::vector<Line>{{std::string("\0\xFF\"", 3), 1, 0}});
}

TEST_CASE("lines longer than the buffer, and lines that end at its edge") {
  constexpr std::size_t kBuffer = std::size_t{1} << 20;
  for (const std::size_t length : {kBuffer - 1, kBuffer, kBuffer + 1, 3 * kBuffer + 7}) {
    const std::string text(length, 'x');
    const std::vector<Line> lines = lines_of("first\n" + text + "\nlast");
    REQUIRE(lines.size() == 3);
    CHECK(lines[1].text == text);
    CHECK(lines[2] == Line{"last", 3, length + 7});
  }
}

TEST_CASE("a file that is not there, and a folder, are named") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(LineReader(folder / "none"), doctest::Contains("none can't be opened"), DataError);
  LineReader reader(folder.path());
  std::string_view line;
  CHECK_THROWS_WITH_AS(reader.next(line), doctest::Contains("can't be read"), DataError);
}

TEST_CASE("columns") {
  CHECK(split_tabs("") == std::vector<std::string_view>{""});
  CHECK(split_tabs("a\t\tb\t") == std::vector<std::string_view>{"a", "", "b", ""});
}

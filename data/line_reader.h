// LineReader: the lines of a text file one after another, however large the file.
//
// Where this stands: below the readers of tab-separated data (listops.h, text_pairs.h). A line ends at "\n" or "\r\n"
// and nowhere else; the last one may lack its end. Bytes are not looked at otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace polygrad {

class LineReader {
 public:
  // Throws DataError naming the file where it can't be opened.
  explicit LineReader(std::string path);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // The next line without its end, valid until the next call; false at the end of the file. Throws DataError where
  // reading fails, or a line has more than 256 MiB.
  bool next(std::string_view& line);

  std::int64_t number() const { return number_; }   // of the line that next() gave last, from 1
  std::uint64_t offset() const { return offset_; }  // of its first byte in the file
  std::string where() const;                        // "FILE:17", for messages

 private:
  bool refill();

  std::string path_;
  int descriptor_ = -1;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // of what is not yet given out
  std::uint64_t offset_ = 0, next_offset_ = 0;
  std::int64_t number_ = 0;
  bool at_end_ = false;
};

// The parts of a line between tabs, one more than it has tabs.
std::vector<std::string_view> split_tabs(std::string_view line);

}  // namespace polygrad

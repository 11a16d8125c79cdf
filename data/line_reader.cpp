#include "data/line_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

namespace {
constexpr std::size_t kBlock = std::size_t{1} << 20, kMaxLine = std::size_t{1} << 28;
}

LineReader::LineReader(std::string path) : path_(std::move(path)) {
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) throw DataError(format("[data] {} can't be opened: {}", path_, std::strerror(errno)));
  buffer_.resize(kBlock);
}

LineReader::~LineReader() {
  if (descriptor_ >= 0) close(descriptor_);
}

// Appends to what is left in the buffer; false at the end of the file.
bool LineReader::refill() {
  if (at_end_) return false;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == buffer_.size()) {
    if (buffer_.size() >= kMaxLine) {
      throw DataError(
          format("[data] {}:{}: a line of more than {} MiB; expected a text file", path_, number_ + 1, kMaxLine >> 20));
    }
    buffer_.resize(2 * buffer_.size());
  }
  ssize_t got = 0;
  do {
    got = read(descriptor_, buffer_.data() + end_, buffer_.size() - end_);
  } while (got < 0 && errno == EINTR);
  if (got < 0) throw DataError(format("[data] {} can't be read: {}", path_, std::strerror(errno)));
  at_end_ = got == 0;
  end_ += static_cast<std::size_t>(got);
  return !at_end_;
}

bool LineReader::next(std::string_view& line) {
  std::size_t searched = 0;
  const char* newline = nullptr;
  while (true) {
    const char* from = buffer_.data() + begin_;
    newline = static_cast<const char*>(std::memchr(from + searched, '\n', end_ - begin_ - searched));
    if (newline != nullptr) break;
    searched = end_ - begin_;
    if (!refill()) break;
  }
  if (newline == nullptr && begin_ == end_) return false;
  const std::size_t size =
      newline != nullptr ? static_cast<std::size_t>(newline - (buffer_.data() + begin_)) : end_ - begin_;
  line = std::string_view(buffer_.data() + begin_, size);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const std::size_t taken = size + (newline != nullptr ? 1 : 0);
  begin_ += taken;
  offset_ = next_offset_;
  next_offset_ += taken;
  ++number_;
  return true;
}

std::string LineReader::where() const { return format("{}:{}", path_, number_); }

std::vector<std::string_view> split_tabs(std::string_view line) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t tab = line.find('\t');
    parts.push_back(line.substr(0, tab));
    if (tab == std::string_view::npos) return parts;
    line.remove_prefix(tab + 1);
  }
}

}  // namespace polygrad

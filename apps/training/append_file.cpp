#include "apps/training/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"

namespace polygrad {

AppendFile::AppendFile(std::string path, std::string_view content) : path_(std::move(path)) {
  write_file_atomically(path_, content);
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (descriptor_ < 0) {
    throw IoError(format("[metrics] can't open {}: {}", path_, std::generic_category().message(errno)));
  }
  good_size_ = static_cast<std::int64_t>(content.size());
}

AppendFile::~AppendFile() {
  if (descriptor_ < 0) return;
  if (!waiting_.empty()) append("");
  ::close(descriptor_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept { *this = std::move(other); }

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(good_size_, other.good_size_);
  std::swap(waiting_, other.waiting_);
  std::swap(trouble_, other.trouble_);
  return *this;
}

void AppendFile::append(std::string_view record) {
  if (descriptor_ < 0) return;
  waiting_ += record;
  std::size_t done = 0;
  while (done < waiting_.size()) {
    const ssize_t wrote = ::write(descriptor_, waiting_.data() + done, waiting_.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const int reason = wrote < 0 ? errno : ENOSPC;
      // All that waits is tried again with the next record. (Where even this fails, the half record stands until the
      // next resume, which leaves it out.)
      [[maybe_unused]] const int ignored = ::ftruncate(descriptor_, good_size_);
      trouble_ = format("{}: {}", path_, std::generic_category().message(reason));
      return;
    }
    done += static_cast<std::size_t>(wrote);
  }
  good_size_ += static_cast<std::int64_t>(waiting_.size());
  waiting_.clear();
  trouble_.clear();
}

void AppendFile::sync() {
  if (descriptor_ < 0) return;
  if (!waiting_.empty()) append("");
  ::fdatasync(descriptor_);
}

}  // namespace polygrad

// Atomic writes and whole-file reads; see file.h.
#include "engine/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void throw_read_error(const std::string& path, int error) {
  throw IoError(format("[read_file] cannot read '{}': {}", path, reason(error)));
}

[[noreturn]] void throw_write_error(const std::string& path, int error) {
  if (error == ENOSPC || error == EDQUOT) {
    throw IoError(
        format("[write_file] no space left on device while writing '{}'; an older file of that name is "
               "untouched; free some space or write elsewhere",
               path));
  }
  throw IoError(
      format("[write_file] cannot write '{}': {}; an older file of that name is untouched", path, reason(error)));
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Some file systems, and all devices, cannot sync and say EINVAL; there is nothing more to do then. Returns errno.
int sync_descriptor(int descriptor) {
  while (::fsync(descriptor) != 0) {
    if (errno == EINVAL || errno == ENOTSUP) return 0;
    if (errno != EINTR) return errno;
  }
  return 0;
}

// Distinguishes the temporaries of several writers of one file; the process id keeps processes apart.
std::atomic<unsigned> temporary_count{0};

constexpr std::string_view kTemporaryMark = ".tmp-";

// Whether a name ends in .tmp-PID-COUNT.
bool is_temporary(std::string_view name) {
  const std::size_t mark = name.rfind(kTemporaryMark);
  if (mark == std::string_view::npos) return false;
  const std::string_view rest = name.substr(mark + kTemporaryMark.size());
  const std::size_t dash = rest.find('-');
  if (dash == std::string_view::npos) return false;
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return is_number(rest.substr(0, dash)) && is_number(rest.substr(dash + 1));
}

// Closes a descriptor at the end of a scope.
struct DescriptorCloser {
  int descriptor;
  ~DescriptorCloser() {
    if (descriptor >= 0) ::close(descriptor);
  }
};

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) { open_temporary(); }

// The name may be taken: by a writer in another container, whose process has the same id, or by one that was killed.
// The lock tells them apart (remove_stale_temporaries); the kernel drops it with the process.
void AtomicFile::open_temporary() {
  while (true) {
    temporary_ =
        format("{}{}{}-{}", path_, kTemporaryMark, ::getpid(), temporary_count.fetch_add(1, std::memory_order_relaxed));
    descriptor_ = ::open(temporary_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (descriptor_ < 0) {
      if (errno == EEXIST) continue;
      throw_write_error(path_, errno);
    }
    // Between open and lock the file looks stale, and somebody may be removing it: then another is made.
    const bool taken = ::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    struct stat status = {};
    if (!taken && ::fstat(descriptor_, &status) == 0 && status.st_nlink > 0) return;
    ::close(std::exchange(descriptor_, -1));
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  if (descriptor_ < 0) throw InternalError(format("[write_file] '{}' is written after commit()", path_));
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, next, bytes);
    if (written < 0) {
      if (errno == EINTR) continue;
      throw_write_error(path_, errno);  // the destructor removes the temporary
    }
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  if (descriptor_ < 0) throw InternalError(format("[write_file] '{}' is committed twice", path_));
  int error = sync_descriptor(descriptor_);
  // The second descriptor keeps the lock until the temporary has its new name.
  const DescriptorCloser lock{::fcntl(descriptor_, F_DUPFD_CLOEXEC, 0)};
  if (lock.descriptor < 0 && error == 0) error = errno;
  // A network file system may report a full disk only here.
  if (::close(std::exchange(descriptor_, -1)) != 0 && error == 0 && errno != EINTR) error = errno;
  if (error == 0 && ::rename(temporary_.c_str(), path_.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary_.c_str());
    throw_write_error(path_, error);
  }
  sync_folder(folder_of(path_));
}

void write_file_atomically(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

int remove_stale_temporaries(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), &::closedir);
  if (!entries) return 0;
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(entries.get())) {
    if (is_temporary(entry->d_name)) names.emplace_back(entry->d_name);
  }
  int removed = 0;
  for (const std::string& name : names) {
    const int descriptor =
        ::openat(::dirfd(entries.get()), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) continue;
    const DescriptorCloser closer{descriptor};
    struct stat status = {};
    const bool is_file = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
    if (!is_file || ::flock(descriptor, LOCK_EX | LOCK_NB) != 0) continue;
    if (::unlinkat(::dirfd(entries.get()), name.c_str(), 0) == 0) ++removed;
  }
  return removed;
}

std::string read_file(const std::string& path, std::size_t max_bytes) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw_read_error(path, errno);
  const DescriptorCloser closer{descriptor};
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) throw_read_error(path, errno);
  const auto too_large = [&] {
    return IoError(format("[read_file] '{}' is too large: expected at most {} bytes", path, max_bytes));
  };
  const auto stated_size = static_cast<std::size_t>(std::max<off_t>(status.st_size, 0));
  if (S_ISREG(status.st_mode) && stated_size > max_bytes) throw too_large();

  // The stated size is only a first guess: files under /proc say 0, and a file may grow while it is read.
  constexpr std::size_t kStep = 64 * 1024;
  std::string content;
  std::size_t filled = 0;
  while (true) {
    if (content.size() < filled + kStep) content.resize(filled == 0 ? stated_size + kStep : 2 * filled + kStep);
    const ssize_t count = ::read(descriptor, content.data() + filled, content.size() - filled);
    if (count < 0) {
      if (errno == EINTR) continue;
      throw_read_error(path, errno);
    }
    if (count == 0) break;
    filled += static_cast<std::size_t>(count);
    if (filled > max_bytes) throw too_large();
  }
  content.resize(filled);
  return content;
}

void for_each_piece(const std::string& path, const std::function<void(std::string_view)>& use) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw_read_error(path, errno);
  const DescriptorCloser closer{descriptor};
  std::string piece(std::size_t{1} << 20, '\0');
  while (true) {
    std::size_t filled = 0;  // whole pieces, however little a read gives
    while (filled < piece.size()) {
      const ssize_t count = ::read(descriptor, piece.data() + filled, piece.size() - filled);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw_read_error(path, errno);
      if (count == 0) break;
      filled += static_cast<std::size_t>(count);
    }
    if (filled > 0) use(std::string_view(piece).substr(0, filled));
    if (filled < piece.size()) return;
  }
}

void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int error = descriptor < 0 ? errno : 0;
  if (error == 0) {
    const DescriptorCloser closer{descriptor};
    error = sync_descriptor(descriptor);
  }
  if (error != 0) throw IoError(format("[sync_folder] cannot sync folder '{}': {}", folder, reason(error)));
}

}  // namespace polygrad

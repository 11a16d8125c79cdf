#include "apps/training/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

namespace {

// is_locked() holds a folder for a moment: who comes just then tries again.
constexpr int kTries = 20;
constexpr std::chrono::milliseconds kBetweenTries(5);

int open_folder(const std::string& folder) { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

// False where another one holds it. A file system without locks refuses nothing.
bool lock(int descriptor, int kind) { return ::flock(descriptor, kind | LOCK_NB) == 0 || errno != EWOULDBLOCK; }

}  // namespace

FolderLock::FolderLock(const std::string& folder) : descriptor_(open_folder(folder)) {
  if (descriptor_ < 0) {
    const std::error_code error(errno, std::generic_category());
    throw IoError(format("[run folder] can't open {}: {}", folder, error.message()));
  }
  for (int i = 0; !lock(descriptor_, LOCK_EX); ++i) {
    if (i == kTries) {
      ::close(descriptor_);
      throw IoError(
          format("[run folder] another process is writing into {}; wait for it, or name another folder with "
                 "--out",
                 folder));
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

FolderLock::FolderLock(FolderLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

bool FolderLock::holds(const std::string& folder) const {
  struct stat own = {}, there = {};
  return held() && ::fstat(descriptor_, &own) == 0 && ::stat(folder.c_str(), &there) == 0 &&
         own.st_ino == there.st_ino && own.st_dev == there.st_dev;
}

bool is_locked(const std::string& folder) {
  const int descriptor = open_folder(folder);
  if (descriptor < 0) return false;
  const bool free = lock(descriptor, LOCK_SH);
  ::close(descriptor);
  return !free;
}

}  // namespace polygrad

// FolderLock: one process at a time writes into a folder.
//
// Where this stands: above the file system alone; run_folder.h and the program of a sweep hold one.
// The lock is the kernel's (flock on the folder): it ends with its holder, also where that is killed.
#pragma once

#include <string>

namespace polygrad {

class FolderLock {
 public:
  FolderLock() = default;  // holds nothing
  // The folder must exist. Throws IoError where it can't be opened, or another process holds it.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;

  bool held() const { return descriptor_ >= 0; }
  // Whether the path still leads to the folder that is held: false where that was moved or removed since.
  bool holds(const std::string& folder) const;

 private:
  int descriptor_ = -1;
};

// Whether a FolderLock is held on the folder, by this process or another; false where it can't be opened.
bool is_locked(const std::string& folder);

}  // namespace polygrad

// Small file helpers of the library: atomic writes and whole-file reads, with errors that say what and where.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace polygrad {

// Writes a file so that `path` is always either the old or the whole new content, also after a crash: a temporary in
// the same folder, fsync, rename, fsync of the folder. Throws IoError naming path and reason; the temporary is removed.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();  // without commit(): the temporary is removed, the target untouched
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void commit();

 private:
  void open_temporary();

  std::string path_, temporary_;
  int descriptor_ = -1;
};

void write_file_atomically(const std::string& path, std::string_view content);
// Removes the temporaries in `folder` whose writers were killed; those of living writers stay, and so does what can't
// be removed or told apart. Returns how many went; a folder that can't be read has none.
int remove_stale_temporaries(const std::string& folder);
// Throws IoError where it can't be opened or is larger than max_bytes.
std::string read_file(const std::string& path, std::size_t max_bytes = std::size_t{1} << 30);
// The same a piece at a time (of at most a MiB), for files of any size.
void for_each_piece(const std::string& path, const std::function<void(std::string_view)>& use);
// Makes a file's folder entry durable.
void sync_folder(const std::string& folder);

}  // namespace polygrad

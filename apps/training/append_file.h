// AppendFile: a file that grows by whole records and outlives a full disk.
//
// Where this stands: below metrics_log.h and tensorboard.h, above engine/file.h.
// Promises: a record is in the file (out of this process) when append() returns; no half record stays behind where the
// disk is full: records wait in memory and are written, in their order, when there is room again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace polygrad {

class AppendFile {
 public:
  AppendFile() = default;  // writes nowhere
  // Replaces the file by `content`, at once, and opens it. Throws IoError.
  AppendFile(std::string path, std::string_view content);
  ~AppendFile();  // the last chance of records that found no room
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;

  void append(std::string_view record);
  // Makes what was written durable.
  void sync();
  // "" or why records are waiting ("PATH: No space left on device").
  const std::string& trouble() const { return trouble_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  std::int64_t good_size_ = 0;  // bytes of complete records
  std::string waiting_;         // records not yet written
  std::string trouble_;
};

}  // namespace polygrad

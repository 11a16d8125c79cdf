// RunFolder: the folder of one run and its checkpoints: names, links, retention, clean-up after a kill.
//
// Where this stands: above folder_lock.h and the file system; checkpoint.h writes into the folders named here.
// A checkpoint appears by a rename, so a folder named step-000500 is complete; `latest` and `best` are relative
// symbolic links, switched by a rename too. Read next: run_folder.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/training/folder_lock.h"

namespace polygrad {

class RunFolder {
 public:
  // Touches nothing. `path` may or may not exist.
  explicit RunFolder(std::string path);

  // Throws ConfigError where the path exists: a new run never writes into an old one's folder.
  void require_new() const;
  // Makes the folder where needed, removes what a killed run left half written, and locks it against a second process
  // (released when this object or the process ends). Throws IoError.
  void open();

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string checkpoint_path(std::int64_t step) const;

  // A checkpoint is written in three steps: fill the folder that begin returns, then finish makes it durable, gives it
  // its name (replacing an older one of that step) and points `latest` at it. A folder that is never finished is
  // removed by the next begin or open. Throws IoError; the old checkpoints and links stay as they were.
  std::string begin_checkpoint(std::int64_t step);
  void finish_checkpoint(std::int64_t step);
  // Removes the folder that begin_checkpoint made.
  void abandon_checkpoint(std::int64_t step);
  // Points `best` at that step's checkpoint, which must exist.
  void link_best(std::int64_t step);
  // Keeps the newest `keep_last` checkpoints (at least one), and the one `best` points at.
  void prune(std::int64_t keep_last);
  // Removes checkpoints of later steps, damaged ones too: a run that goes on from an earlier one takes another way from
  // there. Returns whether there were any.
  bool discard_after(std::int64_t step);

  std::vector<std::int64_t> checkpoint_steps() const;  // complete ones, ascending
  std::optional<std::int64_t> best_step() const;
  // Nothing where there is none. Throws IoError where the newest has lost one of its files.
  std::optional<std::string> newest_checkpoint() const;

  // Bytes free on the file system that holds the folder (or will hold it).
  std::uint64_t free_bytes() const;

 private:
  std::string path_;
  FolderLock lock_;
};

// The checkpoint that a user's path names: a checkpoint folder, a link to one, or a run folder (its newest complete
// checkpoint). Throws IoError naming the path where there is none.
std::string find_checkpoint(const std::string& path);
// Of the checkpoint folder .../checkpoints/step-000500: the run folder; "" where it does not lie in one.
std::string run_folder_of(const std::string& checkpoint);
// The step in a checkpoint folder's name, links followed; -1 where it has none.
std::int64_t checkpoint_step(const std::string& checkpoint);

}  // namespace polygrad

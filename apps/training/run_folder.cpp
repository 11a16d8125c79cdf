// The file system's side of a run. What must hold at any instant, also when the process is killed there: each folder
// named step-NNNNNN is complete, and `latest` and `best` point at complete ones. (Where a file system can't exchange
// two names, a checkpoint that replaces one of its own step is missing for the moment between two system calls.)
#include "apps/training/run_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"

namespace polygrad {

namespace fs = std::filesystem;

namespace {

constexpr const char* kCheckpoints = "checkpoints";
constexpr const char* kStepPrefix = "step-";
constexpr const char* kTemporaryPrefix = ".unfinished-";
constexpr const char* kCheckpointFiles[] = {"model.safetensors", "state.safetensors", "state.json"};

[[noreturn]] void fail(const std::string& what, const fs::path& path, const std::error_code& error) {
  throw IoError(format("[run folder] can't {} {}: {}", what, path.string(), error.message()));
}

std::string step_name(std::int64_t step) { return format("{}{:06}", kStepPrefix, step); }

// The step of a name such as step-000500; -1 for any other.
std::int64_t step_of(const std::string& name) {
  const std::string prefix = kStepPrefix;
  if (name.compare(0, prefix.size(), prefix) != 0) return -1;
  const std::string digits = name.substr(prefix.size());
  if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) return -1;
  return std::stoll(digits);
}

bool is_checkpoint(const fs::path& folder) {
  std::error_code error;
  return std::all_of(std::begin(kCheckpointFiles), std::end(kCheckpointFiles),
                     [&](const char* file) { return fs::is_regular_file(folder / file, error); });
}

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

// Of the folders with a checkpoint's name, ascending; a damaged one may lack files.
std::vector<std::int64_t> named_steps_in(const fs::path& checkpoints) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator it(checkpoints, error), end; !error && it != end; it.increment(error)) {
    const std::int64_t step = step_of(it->path().filename().string());
    if (step >= 0 && !it->is_symlink()) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

// An older checkpoint is nobody's silent choice.
[[noreturn]] void fail_incomplete(const fs::path& folder) {
  std::string missing;
  std::error_code error;
  for (const char* file : kCheckpointFiles) {
    if (!fs::is_regular_file(folder / file, error)) missing += (missing.empty() ? "" : ", ") + std::string(file);
  }
  throw IoError(format("[checkpoint] {} is damaged: it has no {}; --resume can go on from an older checkpoint",
                       folder.string(), missing));
}

// Under another name first, so that a kill in the middle leaves no half-empty folder with a checkpoint's name.
void remove_checkpoint(const fs::path& folder) {
  const fs::path temporary = folder.parent_path() / (kTemporaryPrefix + ("removed-" + folder.filename().string()));
  std::error_code error;
  fs::remove_all(temporary, error);
  fs::rename(folder, temporary, error);
  if (error) fail("remove", folder, error);
  fs::remove_all(temporary, error);
  if (error) fail("remove", temporary, error);
}

void remove_temporaries(const fs::path& checkpoints) {
  std::vector<fs::path> stale;
  std::error_code error;
  for (fs::directory_iterator it(checkpoints, error), end; !error && it != end; it.increment(error)) {
    if (starts_with(it->path().filename().string(), kTemporaryPrefix)) stale.push_back(it->path());
  }
  for (const fs::path& path : stale) {
    fs::remove_all(path, error);
    if (error) fail("remove", path, error);
  }
}

void sync_file(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail("open", path, {errno, std::generic_category()});
  const int result = ::fsync(descriptor);
  const int reason = errno;
  ::close(descriptor);
  if (result != 0) fail("sync", path, {reason, std::generic_category()});
}

// `name` in `checkpoints` becomes a link to the neighbour `target`, in one step.
void switch_link(const fs::path& checkpoints, const char* name, const std::string& target) {
  const fs::path temporary = checkpoints / (std::string(kTemporaryPrefix) + name);
  std::error_code error;
  fs::remove(temporary, error);
  fs::create_symlink(target, temporary, error);
  if (error) fail("make the link", checkpoints / name, error);
  fs::rename(temporary, checkpoints / name, error);
  if (error) fail("make the link", checkpoints / name, error);
  sync_folder(checkpoints.string());
}

}  // namespace

RunFolder::RunFolder(std::string path) : path_(std::move(path)) {
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  if (path_.empty()) throw ConfigError("[run folder] --out: expected a folder's name");
}

void RunFolder::require_new() const {
  std::error_code error;
  if (fs::symlink_status(path_, error).type() == fs::file_type::not_found) return;
  throw ConfigError(
      format("[run folder] {} exists already; go on with it by --resume auto, or name another folder with "
             "--out",
             path_));
}

void RunFolder::open() {
  if (lock_.held()) return;
  const fs::path checkpoints = fs::path(path_) / kCheckpoints;
  std::error_code error;
  fs::create_directories(checkpoints, error);
  if (error) fail("make the folder", checkpoints, error);
  lock_ = FolderLock(path_);
  remove_temporaries(checkpoints);
  remove_stale_temporaries(path_);  // of a run that was killed while it wrote config.json or its metrics
}

std::string RunFolder::checkpoint_path(std::int64_t step) const {
  return format("{}/{}/{}", path_, kCheckpoints, step_name(step));
}

std::string RunFolder::begin_checkpoint(std::int64_t step) {
  const fs::path checkpoints = fs::path(path_) / kCheckpoints;
  const fs::path temporary = checkpoints / (kTemporaryPrefix + step_name(step));
  if (!lock_.holds(path_)) {
    throw IoError(
        format("[run folder] {} is not there any more: it was moved or removed while the run went on", path_));
  }
  remove_temporaries(checkpoints);
  std::error_code error;
  fs::create_directory(temporary, error);
  if (error) fail("make the folder", temporary, error);
  return temporary.string();
}

void RunFolder::finish_checkpoint(std::int64_t step) {
  const fs::path checkpoints = fs::path(path_) / kCheckpoints;
  const fs::path temporary = checkpoints / (kTemporaryPrefix + step_name(step));
  const fs::path target = checkpoints / step_name(step);
  for (const char* file : kCheckpointFiles) sync_file(temporary / file);
  sync_folder(temporary.string());
  std::error_code error;
  if (fs::exists(target, error)) {  // the same step, written anew
    if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
      sync_folder(checkpoints.string());
      fs::remove_all(temporary, error);  // the old one; what can't be removed goes at the next begin
    } else {
      remove_checkpoint(target);
    }
  }
  if (!is_checkpoint(target)) {
    fs::rename(temporary, target, error);
    if (error) fail("name the checkpoint", target, error);
    sync_folder(checkpoints.string());
  }
  switch_link(checkpoints, "latest", step_name(step));
}

void RunFolder::abandon_checkpoint(std::int64_t step) {
  std::error_code ignored;  // it is removed again at the next begin
  fs::remove_all(fs::path(path_) / kCheckpoints / (kTemporaryPrefix + step_name(step)), ignored);
}

void RunFolder::link_best(std::int64_t step) {
  if (!is_checkpoint(checkpoint_path(step))) {
    throw IoError(format("[run folder] there is no checkpoint {} for the link best", checkpoint_path(step)));
  }
  switch_link(fs::path(path_) / kCheckpoints, "best", step_name(step));
}

void RunFolder::prune(std::int64_t keep_last) {
  std::vector<std::int64_t> steps = checkpoint_steps();
  const auto keep = static_cast<std::size_t>(std::max<std::int64_t>(keep_last, 1));
  if (steps.size() <= keep) return;
  steps.resize(steps.size() - keep);
  const std::optional<std::int64_t> best = best_step();
  for (const std::int64_t step : steps) {
    if (step != best) remove_checkpoint(checkpoint_path(step));
  }
}

bool RunFolder::discard_after(std::int64_t step) {
  const fs::path checkpoints = fs::path(path_) / kCheckpoints;
  std::vector<std::int64_t> later = named_steps_in(checkpoints);  // also damaged ones
  std::erase_if(later, [&](std::int64_t its_step) { return its_step <= step; });
  if (later.empty()) return false;
  std::error_code error;
  const std::optional<std::int64_t> best = best_step();
  if (!best || *best > step) fs::remove(checkpoints / "best", error);  // also one that points at a damaged checkpoint
  std::vector<std::int64_t> kept = checkpoint_steps();
  std::erase_if(kept, [&](std::int64_t its_step) { return its_step > step; });
  if (!kept.empty()) switch_link(checkpoints, "latest", step_name(kept.back()));
  for (const std::int64_t its_step : later) remove_checkpoint(checkpoint_path(its_step));
  return true;
}

std::vector<std::int64_t> RunFolder::checkpoint_steps() const {
  std::vector<std::int64_t> steps = named_steps_in(fs::path(path_) / kCheckpoints);
  std::erase_if(steps, [&](std::int64_t step) { return !is_checkpoint(checkpoint_path(step)); });
  return steps;
}

std::optional<std::int64_t> RunFolder::best_step() const {
  std::error_code error;
  const fs::path target = fs::read_symlink(fs::path(path_) / kCheckpoints / "best", error);
  if (error) return std::nullopt;
  const std::int64_t step = step_of(target.filename().string());
  if (step < 0 || !is_checkpoint(checkpoint_path(step))) return std::nullopt;
  return step;
}

std::optional<std::string> RunFolder::newest_checkpoint() const {
  const std::vector<std::int64_t> steps = named_steps_in(fs::path(path_) / kCheckpoints);
  if (steps.empty()) return std::nullopt;
  std::string newest = checkpoint_path(steps.back());
  if (!is_checkpoint(newest)) fail_incomplete(newest);
  return newest;
}

std::uint64_t RunFolder::free_bytes() const {
  std::error_code error;
  fs::path place = fs::absolute(path_, error);
  while (!fs::exists(place, error) && place.has_parent_path() && place != place.parent_path()) {
    place = place.parent_path();
  }
  const fs::space_info space = fs::space(place, error);
  if (error) fail("ask for the free space of", place, error);
  return space.available;
}

std::string find_checkpoint(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) throw IoError(format("[checkpoint] there is no {}", path));
  if (is_checkpoint(path)) return path;
  if (!run_folder_of(path).empty() && checkpoint_step(path) >= 0) fail_incomplete(path);
  if (const auto newest = RunFolder(path).newest_checkpoint()) return *newest;
  throw IoError(
      format("[checkpoint] {} is no checkpoint, and no run folder with one; expected a folder with {}, {} and "
             "{}, or checkpoints/{}NNNNNN in it",
             path, kCheckpointFiles[0], kCheckpointFiles[1], kCheckpointFiles[2], kStepPrefix));
}

std::string run_folder_of(const std::string& checkpoint) {
  std::error_code error;
  const fs::path folder = fs::canonical(checkpoint, error);
  if (error || folder.parent_path().filename() != kCheckpoints) return "";
  return folder.parent_path().parent_path().string();
}

std::int64_t checkpoint_step(const std::string& checkpoint) {
  std::error_code error;
  const fs::path folder = fs::canonical(checkpoint, error);
  return error ? -1 : step_of(folder.filename().string());
}

}  // namespace polygrad

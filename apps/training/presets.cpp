#include "apps/training/presets.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "apps/training/config_schema.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kExtension = ".json";

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// NAME.json in the folder; "" where there is none.
std::string find_in(const std::string& folder, const std::string& name) {
  if (folder.empty() || name.empty() || name.find('/') != std::string::npos) return "";
  const fs::path path = fs::path(folder) / (name + std::string(kExtension));
  return is_file(path) ? path.string() : "";
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == kExtension) names.push_back(it->path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

struct FileKind {
  const char* flag;    // that names such a file
  const char* what;    // one that comes with polygrad
  std::string folder;  // where those lie; "" where there is none
};

// A path, or the bare name of one that comes with polygrad: a folder of that name, a run's say, does not hide it.
std::string find_file(const FileKind& kind, const std::string& word) {
  if (is_file(word)) return word;
  const bool looks_like_path = word.find('/') != std::string::npos ||
                               (word.size() > kExtension.size() &&
                                word.compare(word.size() - kExtension.size(), std::string::npos, kExtension) == 0);
  if (!looks_like_path) {
    if (const std::string path = find_in(kind.folder, word); !path.empty()) return path;
  }
  if (is_folder(word)) throw ConfigError(format("[config] {} {}: is a folder; expected a file", kind.flag, word));
  std::string text = format("[config] {} {}: there is no such file", kind.flag, word);
  if (!looks_like_path) {
    const std::vector<std::string> names = names_in(kind.folder);
    if (kind.folder.empty()) {
      text += ", and no folder of presets beside the program; POLYGRAD_EXPERIMENTS can name one";
    } else {
      text += format(", and no {} of that name in {}", kind.what, kind.folder);
      if (!names.empty()) text += format("; did you mean {}?", nearest_word(word, names));
    }
  }
  throw ConfigError(text);
}

}  // namespace

std::string preset_folder() {
  if (const char* folder = std::getenv("POLYGRAD_EXPERIMENTS"); folder != nullptr && *folder != '\0') return folder;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return "";
  const fs::path folder = program.parent_path().parent_path() / "share" / "polygrad" / "experiments";
  return is_folder(folder) ? folder.string() : "";
}

std::string find_preset(const std::string& name) { return find_in(preset_folder(), name); }

std::vector<std::string> preset_names() { return names_in(preset_folder()); }

std::string find_config_file(const std::string& word) {
  return find_file({.flag = "--config", .what = "preset", .folder = preset_folder()}, word);
}

std::string find_sweep_file(const std::string& word) {
  const std::string presets = preset_folder();
  return find_file({.flag = "--sweep", .what = "sweep", .folder = presets.empty() ? "" : presets + "/sweeps"}, word);
}

}  // namespace polygrad

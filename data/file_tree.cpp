#include "data/file_tree.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

bool is_hidden(const std::string& name) {
  if (name[0] == '.') return true;
  const std::string plain = lower(name);
  for (const char* left_behind : {"thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir", "__macosx", "$recycle.bin"}) {
    if (plain == left_behind) return true;
  }
  return false;
}

bool is_picture(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos) return false;
  const std::string ending = lower(std::string_view(name).substr(dot + 1));
  for (const char* known : {"jpg", "jpeg", "jpe", "jfif", "png", "bmp", "ppm", "pgm", "pnm",  // decoded
                            "gif", "webp", "tif", "tiff", "heic", "avif", "jp2"}) {           // refused by name
    if (ending == known) return true;
  }
  return false;
}

struct Entry {
  std::string name;
  bool folder = false;
  int trouble = 0;  // errno of what can't be looked at
  std::uint64_t bytes = 0;
  std::pair<dev_t, ino_t> place{};
};

// In natural order, without "." and "..".
std::vector<Entry> list(const std::string& folder) {
  const auto fail = [&] {
    throw DataError(format("[data] the folder {} can't be read: {}", folder, std::system_category().message(errno)));
  };
  const auto close = [](DIR* stream) { closedir(stream); };
  const std::unique_ptr<DIR, decltype(close)> stream(opendir(folder.c_str()), close);
  if (!stream) fail();
  std::vector<Entry> entries;
  while (true) {
    errno = 0;
    const dirent* found = readdir(stream.get());
    if (!found && errno != 0) fail();
    if (!found) break;
    Entry entry;
    entry.name = found->d_name;
    if (entry.name == "." || entry.name == "..") continue;
    struct stat status = {};
    if (fstatat(dirfd(stream.get()), found->d_name, &status, 0) == 0) {
      entry.folder = S_ISDIR(status.st_mode);
      entry.bytes = static_cast<std::uint64_t>(status.st_size);
      entry.place = {status.st_dev, status.st_ino};
    } else {
      entry.trouble = errno;
    }
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return natural_less(a.name, b.name); });
  return entries;
}

// What is neither a folder nor a picture by its name: a foreign file, a link to nowhere, or an error, because what
// can't be looked at may be a whole class.
void note_other(const Entry& entry, const std::string& path, TreeNotes& notes) {
  if (entry.trouble == 0) {
    notes.foreign.push_back(path);
  } else if (entry.trouble == ENOENT || entry.trouble == ELOOP) {
    notes.lines.push_back(format("{}: a link that leads nowhere; left out", path));
  } else {
    throw DataError(format("[data] {} can't be read: {}", path, std::system_category().message(entry.trouble)));
  }
}

struct Search {
  std::vector<FoundFile>& files;
  TreeNotes& notes;
  std::vector<std::pair<dev_t, ino_t>> above;  // the folders we are in

  void walk(const std::string& folder, const std::string& prefix) {
    for (const Entry& entry : list(folder)) {
      const std::string path = folder + "/" + entry.name;
      if (is_hidden(entry.name)) {
        ++notes.hidden;
      } else if (entry.folder) {
        if (std::find(above.begin(), above.end(), entry.place) != above.end()) {
          notes.lines.push_back(format("{}: a link to a folder above itself; left out", path));
          continue;
        }
        above.push_back(entry.place);
        walk(path, prefix + entry.name + "/");
        above.pop_back();
      } else if (is_picture(entry.name)) {
        files.push_back({prefix + entry.name, entry.bytes});
      } else {
        note_other(entry, path, notes);
      }
    }
  }
};

std::pair<dev_t, ino_t> place_of(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return {};
  return {status.st_dev, status.st_ino};
}

// The folder itself and those above it: by the path as it is written, and by where a link in it leads.
std::vector<std::pair<dev_t, ino_t>> places_above(const std::string& folder) {
  std::vector<std::pair<dev_t, ino_t>> places = {place_of(folder)};
  const std::size_t slash = folder.rfind('/');
  for (std::string up : {folder + "/..", slash == std::string::npos ? std::string(".") : folder.substr(0, slash + 1)}) {
    while (places.back() != place_of(up)) {  // "/.." is "/"
      places.push_back(place_of(up));
      up += "/..";
    }
  }
  return places;
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const std::size_t a_begin = i, b_begin = j;
      while (i < a.size() && is_digit(a[i])) ++i;
      while (j < b.size() && is_digit(b[j])) ++j;
      std::string_view left = a.substr(a_begin, i - a_begin), right = b.substr(b_begin, j - b_begin);
      left.remove_prefix(std::min(left.find_first_not_of('0'), left.size()));
      right.remove_prefix(std::min(right.find_first_not_of('0'), right.size()));
      if (left.size() != right.size()) return left.size() < right.size();
      if (left != right) return left < right;
      continue;
    }
    if (a[i] != b[j]) return static_cast<unsigned char>(a[i]) < static_cast<unsigned char>(b[j]);
    ++i, ++j;
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  return a < b;  // 01 and 1
}

std::vector<FoundFile> find_pictures(const std::string& folder, TreeNotes& notes) {
  std::vector<FoundFile> files;
  Search search{files, notes, places_above(folder)};
  search.walk(folder, "");
  std::sort(files.begin(), files.end(),
            [](const FoundFile& a, const FoundFile& b) { return natural_less(a.path, b.path); });
  return files;
}

std::vector<std::string> find_folders(const std::string& folder, TreeNotes& notes, std::int64_t* loose) {
  std::vector<std::string> folders;
  const auto above = places_above(folder);
  for (const Entry& entry : list(folder)) {
    if (is_hidden(entry.name)) {
      ++notes.hidden;
    } else if (entry.folder && std::find(above.begin(), above.end(), entry.place) != above.end()) {
      notes.lines.push_back(format("{}/{}: a link to a folder above itself; left out", folder, entry.name));
    } else if (entry.folder) {
      folders.push_back(entry.name);
    } else if (loose && is_picture(entry.name)) {
      ++*loose;
    } else {
      note_other(entry, folder + "/" + entry.name, notes);
    }
  }
  return folders;
}

std::vector<std::string> find_files(const std::string& folder, std::string_view ending, TreeNotes& notes) {
  std::vector<std::string> files;
  for (const Entry& entry : list(folder)) {
    if (is_hidden(entry.name)) {
      ++notes.hidden;
    } else if (!entry.folder && entry.name.ends_with(ending)) {
      files.push_back(entry.name);
    } else {
      notes.foreign.push_back(folder + "/" + entry.name);
    }
  }
  return files;
}

bool is_folder(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

bool is_file(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace polygrad

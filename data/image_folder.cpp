#include "data/image_folder.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"

namespace polygrad {

namespace {

constexpr const char* kAnnotations = "val_annotations.txt";
constexpr const char* kFlatFolder = "images";
constexpr const char* kLayout =
    "expected ROOT/train/CLASS/picture.jpg and ROOT/val/CLASS/picture.jpg, or ROOT/CLASS/picture.jpg";

// A part before its classes have numbers.
struct Part {
  std::string folder;
  std::int64_t loose = 0;  // pictures without a class
  std::map<std::string, std::vector<FoundFile>, bool (*)(std::string_view, std::string_view)> classes{&natural_less};
};

// Without the empty ones.
std::vector<std::string> lines_of(const std::string& path) {
  std::string text;
  try {
    text = read_file(path);
  } catch (const IoError& error) {  // of the data, not of a checkpoint
    throw DataError(format("[data] {}", error.what()));
  }
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

// Tiny-ImageNet's val: one flat folder, and a file that says what each picture shows.
Part scan_annotated(const std::string& folder, TreeNotes& notes) {
  Part part;
  part.folder = folder;
  const std::string list = folder + "/" + kAnnotations;
  const std::string prefix = is_folder(folder + "/" + kFlatFolder) ? std::string(kFlatFolder) + "/" : "";
  std::map<std::string, std::uint64_t> present;
  for (FoundFile& file : find_pictures(folder, notes)) present.emplace(std::move(file.path), file.bytes);
  std::erase_if(notes.foreign, [&](const std::string& path) { return path == list; });
  std::int64_t lines = 0, missing = 0, found_files = 0;
  std::string first_missing;
  for (const std::string& line : lines_of(list)) {
    ++lines;
    const std::size_t tab = line.find('\t');
    const std::size_t end = tab == std::string::npos ? tab : std::min(line.find('\t', tab + 1), line.size());
    if (tab == std::string::npos || tab == 0 || end == tab + 1) {
      throw DataError(format("[data] {} line {}: expected \"file TAB class TAB ...\", got \"{}\"", list, lines,
                             line.substr(0, 60)));
    }
    const auto found = present.find(prefix + line.substr(0, tab));
    if (found == present.end()) {
      if (missing++ == 0) first_missing = prefix + line.substr(0, tab);
      continue;
    }
    part.classes[line.substr(tab + 1, end - tab - 1)].push_back({found->first, found->second});
    present.erase(found);
    ++found_files;
  }
  if (found_files == 0) {
    throw DataError(format("[data] {}: none of its {} lines names a picture of {}", list, lines, folder));
  }
  if (missing > 0) {
    notes.lines.push_back(
        format("{}: {} of its {} pictures are not there, such as {}", list, missing, lines, first_missing));
  }
  if (!present.empty()) {
    notes.lines.push_back(format("{}: {} pictures have no line in {}, such as {}; left out", folder, present.size(),
                                 kAnnotations, present.begin()->first));
  }
  for (auto& [name, files] : part.classes) {
    std::sort(files.begin(), files.end(),
              [](const FoundFile& a, const FoundFile& b) { return natural_less(a.path, b.path); });
  }
  return part;
}

Part scan(const std::string& folder, TreeNotes& notes) {
  if (is_file(folder + "/" + kAnnotations)) return scan_annotated(folder, notes);
  Part part;
  part.folder = folder;
  for (const std::string& name : find_folders(folder, notes, &part.loose)) {
    std::vector<FoundFile>& files = part.classes[name];
    for (FoundFile& file : find_pictures(folder + "/" + name, notes)) {
      files.push_back({name + "/" + file.path, file.bytes});
    }
    if (files.empty()) notes.lines.push_back(format("{}/{}: a class without pictures", folder, name));
  }
  if (part.loose > 0) {
    notes.lines.push_back(format("{}: {} pictures lie in no class folder; left out", folder, part.loose));
  }
  return part;
}

std::int64_t count(const Part& part) {
  std::size_t pictures = 0;
  for (const auto& [name, files] : part.classes) pictures += files.size();
  return static_cast<std::int64_t>(pictures);
}

// All pictures in one place that tells no class: directly in the folder, or in "images".
bool is_flat(const Part& part) {
  if (count(part) == 0) return part.loose > 0;
  return part.classes.size() == 1 && part.classes.begin()->first == kFlatFolder;
}

std::vector<std::string> class_list(const Part& part, const ImageFolderOptions& options) {
  std::vector<std::string> names;
  if (options.class_map.empty()) {
    for (const auto& [name, files] : part.classes) names.push_back(name);
    return names;
  }
  names = lines_of(options.class_map);
  if (std::set<std::string>(names.begin(), names.end()).size() != names.size()) {
    throw DataError(format("[data] {}: a class stands in it twice", options.class_map));
  }
  return names;
}

std::shared_ptr<const ImageFileDataset> number(Part part, const std::vector<std::string>& names,
                                               const std::string& part_name, const ImageFolderOptions& options) {
  std::map<std::string, std::int64_t> places;
  for (std::size_t i = 0; i < names.size(); ++i) places.emplace(names[i], static_cast<std::int64_t>(i));
  std::vector<std::vector<ImageEntry>> by_class(names.size());
  for (auto& [name, files] : part.classes) {
    const auto found = places.find(name);
    if (found == places.end()) {
      if (files.empty()) continue;
      throw DataError(format("[data] {}: the class '{}' ({} pictures) is none of the {} classes of {}", part.folder,
                             name, files.size(), names.size(),
                             options.class_map.empty() ? "the training part" : options.class_map));
    }
    for (FoundFile& file : files) {
      by_class[static_cast<std::size_t>(found->second)].push_back({std::move(file.path), found->second, file.bytes});
    }
  }
  std::vector<ImageEntry> entries;  // by class, then by name, whatever the layout: the same pictures in the same order
  for (std::vector<ImageEntry>& some : by_class) {
    entries.insert(entries.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  }
  return std::make_shared<ImageFileDataset>(options.name + " " + part_name, part.folder, std::move(entries), names,
                                            options.decode);
}

// The folder of a part, or "".
std::string part_folder(const std::string& root, const std::string& part) {
  static const std::vector<std::string> val_names = {"val", "valid", "validation"};
  for (const std::string& name : part == "val" ? val_names : std::vector<std::string>{part}) {
    if (is_folder(root + "/" + name)) return root + "/" + name;
  }
  return "";
}

void check_root(const std::string& root, const ImageFolderOptions& options) {
  if (root.empty()) {
    throw DataError(
        format("[data] the data set {} has no place of its own; name its folder with --data DIR", options.name));
  }
  if (!is_folder(root)) throw DataError(format("[data] {}: there is no such folder; {}", root, kLayout));
}

}  // namespace

ImageParts open_image_folder(const std::string& root, const ImageFolderOptions& options) {
  check_root(root, options);
  ImageParts parts;
  std::string train_folder = part_folder(root, "train");
  const bool split = !train_folder.empty();
  if (!split) train_folder = root;
  Part train = scan(train_folder, parts.notes);
  if (count(train) == 0 || is_flat(train)) {
    throw DataError(format("[data] {}: no class folders with pictures in it; {}", train_folder, kLayout));
  }
  const std::vector<std::string> names = class_list(train, options);
  if (!split) {
    for (const char* other : {"val", "valid", "validation", "test"}) {
      if (train.classes.count(other)) {
        throw DataError(format("[data] {}: a folder '{}', but none that is called 'train'; {}", root, other, kLayout));
      }
    }
  }
  parts.train = number(std::move(train), names, "train", options);
  for (const std::string part_name : {"val", "test"}) {
    const std::string folder = split ? part_folder(root, part_name) : "";
    if (folder.empty()) continue;
    Part part = scan(folder, parts.notes);
    if (is_flat(part) && !std::count(names.begin(), names.end(), kFlatFolder)) {
      const std::int64_t pictures = part.loose + count(part);
      if (part_name == "val") {
        throw DataError(
            format("[data] {}: {} pictures in one folder and no {}: without that file (a line \"file TAB class\" for "
                   "each picture) nothing says what they show; or {}",
                   folder, pictures, kAnnotations, kLayout));
      }
      parts.notes.lines.push_back(format("{}: {} pictures without labels; not used", folder, pictures));
      continue;
    }
    if (count(part) == 0) {
      parts.notes.lines.push_back(format("{}: no class folders with pictures in it; not used", folder));
      continue;
    }
    std::string absent;
    std::int64_t absentees = 0;
    for (const std::string& name : names) {
      const auto found = part.classes.find(name);
      if (found != part.classes.end() && !found->second.empty()) continue;
      if (++absentees <= 3) absent += (absent.empty() ? "" : ", ") + name;
    }
    if (absentees > 0) {
      parts.notes.lines.push_back(format("{}: no pictures of {} of the {} classes: {}{}", folder, absentees,
                                         names.size(), absent, absentees > 3 ? ", ..." : ""));
    }
    (part_name == "val" ? parts.val : parts.test) = number(std::move(part), names, part_name, options);
  }
  return parts;
}

std::shared_ptr<const ImageFileDataset> open_image_part(const std::string& root, const std::string& split,
                                                        const ImageFolderOptions& options, std::string& found,
                                                        TreeNotes& notes) {
  check_root(root, options);
  std::vector<std::string> wanted = {split};
  if (split.empty()) wanted = {"test", "val"};
  for (const std::string& name : wanted) {
    const std::string folder = part_folder(root, name);
    if (folder.empty()) continue;
    Part part = scan(folder, notes);
    if (split.empty() && name == "test" && (is_flat(part) || count(part) == 0)) continue;  // without labels
    if (is_flat(part) || count(part) == 0) {
      throw DataError(format("[data] {}: no class folders with pictures, and no {}", folder, kAnnotations));
    }
    found = name;
    const std::vector<std::string> names = class_list(part, options);
    return number(std::move(part), names, name, options);
  }
  if (!split.empty() && !part_folder(root, "train").empty()) {
    throw DataError(format("[data] {} has no folder '{}'", root, split));
  }
  Part part = scan(root, notes);
  if (is_flat(part) || count(part) == 0) {
    throw DataError(format("[data] {}: no class folders with pictures, and no {}; {}", root, kAnnotations, kLayout));
  }
  found.clear();
  const std::vector<std::string> names = class_list(part, options);
  return number(std::move(part), names, "pictures", options);
}

std::string find_image_root(const std::string& root, const std::string& inner) {
  if (part_folder(root, "train").empty() && part_folder(root, "val").empty() && is_folder(root + "/" + inner)) {
    return root + "/" + inner;
  }
  return root;
}

}  // namespace polygrad

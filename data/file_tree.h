// Folders of pictures, and of other files: what is found, in which order, and what is left out.
//
// Where this stands: below image_files.h. Nothing here opens a picture.
//
//   order        natural: runs of digits count as numbers (1, 2, 10), the rest byte by byte; the same on every file
//                system and in every locale
//   left out     names that begin with a dot, and what systems leave behind (Thumbs.db, desktop.ini, @eaDir, __MACOSX):
//                counted as hidden; files whose name is no picture's: counted as foreign
//   kept         pictures by the ending of their name, of any case; also endings of formats that can't be decoded
//                (.webp, .gif, ...), and files that can't be opened, so that nothing of a user's disappears unnoticed
//   links        are followed; one that leads back to a folder above itself, or nowhere, is left out, with a note
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace polygrad {

bool natural_less(std::string_view a, std::string_view b);

struct FoundFile {
  std::string path;         // relative to the folder that was searched
  std::uint64_t bytes = 0;  // 0 where it can't be opened
};

// What a search came across beside pictures.
struct TreeNotes {
  std::int64_t hidden = 0;
  std::vector<std::string> foreign;  // paths
  std::vector<std::string> lines;    // one for each thing worth saying
};

// All pictures below `folder`, in natural order of their paths. Throws DataError naming a folder that can't be read, or
// an entry that can't be looked at and may be one.
std::vector<FoundFile> find_pictures(const std::string& folder, TreeNotes& notes);
// The folders directly in `folder`, in natural order. `loose`, where given, counts the pictures that lie beside them.
std::vector<std::string> find_folders(const std::string& folder, TreeNotes& notes, std::int64_t* loose = nullptr);

// The names of the files directly in `folder` that end in `ending` (".txt"), in natural order; other files, and
// folders, become foreign.
std::vector<std::string> find_files(const std::string& folder, std::string_view ending, TreeNotes& notes);

bool is_folder(const std::string& path);
bool is_file(const std::string& path);

}  // namespace polygrad

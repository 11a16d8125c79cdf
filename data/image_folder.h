// Data sets that are folders of pictures: which layouts are known, and how labels follow from them.
//
// Where this stands: above file_tree.h and image_files.h, below catalog.h.
//
//   ROOT/train/CLASS/**  ROOT/val/CLASS/**  [ROOT/test/CLASS/**]    val may be called valid or validation
//   ROOT/train/CLASS/**  [ROOT/test/CLASS/**]                       val is held out of train
//   ROOT/CLASS/**                                                   val is held out
//   val/val_annotations.txt, val/images/*                           Tiny-ImageNet's own layout: a line for each
//   picture,
//                                                                   "file TAB class TAB ..."; ROOT may be its parent
//
// A class is a folder's name; classes are numbered in natural order of their names (file_tree.h), or in the order of
// the file that data.class_map names. wnids.txt has another order and is not used. Outcomes: a class without pictures
// stays, with a note; a class in val or test that train does not have is an error; so is a val folder without labels.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/file_tree.h"
#include "data/image_files.h"

namespace polygrad {

struct ImageFolderOptions {
  std::string name = "image_folder";  // for fingerprints and messages
  DecodeOptions decode = {};
  std::string class_map = {};  // a file with one class name a line; "": the folders' names in natural order
};

struct ImageParts {
  std::shared_ptr<const ImageFileDataset> train, val, test;  // val and test may be null
  TreeNotes notes;
};

// Throws DataError: no folder, no pictures, or one of the outcomes above, with the path and the layout expected.
ImageParts open_image_folder(const std::string& root, const ImageFolderOptions& options);

// A folder of pictures with labels, for evaluation: ROOT/SPLIT where there is one, else ROOT itself. Its classes are
// its own. `split` "": test, else val. `found` says which folder it was: "test", "val", "train", or "" for ROOT itself.
std::shared_ptr<const ImageFileDataset> open_image_part(const std::string& root, const std::string& split,
                                                        const ImageFolderOptions& options, std::string& found,
                                                        TreeNotes& notes);

// ROOT, or the folder `inner` in it where only that has a part (an archive unpacked one level deeper).
std::string find_image_root(const std::string& root, const std::string& inner);

}  // namespace polygrad

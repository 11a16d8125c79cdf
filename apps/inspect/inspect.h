// inspect's looks: a file of tensors, two files side by side, a fresh model, the runs in a folder. Each prints to
// stdout.
//
// Where this stands: below main.cpp, which parses the command line.
#pragma once

#include <string>
#include <vector>

#include "apps/training/config.h"

namespace polygrad::inspect {

// The safetensors file that a user's path names: a file, a checkpoint folder or a run folder. Throws IoError.
std::string weights_file(const std::string& path);

// Names, dtypes, shapes, totals and metadata; with `stats` also smallest, largest, mean, standard deviation and how
// many elements are not finite.
void show_file(const std::string& path, bool stats);

// What differs between two files. True where they hold the same names, dtypes, shapes and bits, in any order.
bool compare_files(const std::string& first, const std::string& second);

// A fresh model: layers, cost, how the parameters start, attention, and the parameters' fingerprint; or (tsv) exactly
// one line for each tensor: name, sizes joined by x, "param" or "buffer". `save`: also write the weights there, where
// not empty.
void show_model(const std::string& name, const Config& config, bool tsv, const std::string& save);

// The runs in these folders and their sub-folders, two levels deep, the last written one first: aligned columns, or
// (tsv) a heading and one line for each. A run that can't be read is listed as damaged, with the reason. Throws IoError
// at the end where a folder is not there.
void list_runs(const std::vector<std::string>& folders, bool tsv);

}  // namespace polygrad::inspect

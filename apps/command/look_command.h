// What the training programs do besides training: look at the data, evaluate, predict.
//
// Where this stands: program code over apps/training; train_command.cpp parses the flags.
#pragma once

#include <string>
#include <vector>

#include "apps/training/config.h"
#include "engine/device.h"

namespace polygrad {

// --check-data: prints the report. DataError (exit 3) where pictures can't be used and data.on_bad_image is stop.
void check_data_command(const Config& config);
// --contact-sheet FILE.png
void contact_sheet_command(const Config& config, const std::string& file, bool quiet);
// --predict IMAGE... --checkpoint C: for each image its path, then a line for each of the five most probable classes.
// Computed on `device`.
void predict_command(const std::string& checkpoint, const std::vector<std::string>& images, Device device);

// --plot RUN...: draws the runs' pictures into `folder`; of one run into its own plots/ where that is "". A missing
// gnuplot is an IoError here, because pictures are all that was asked for.
void plot_command(const std::vector<std::string>& runs, const std::string& folder, bool quiet);

}  // namespace polygrad

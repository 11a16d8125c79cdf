#include "apps/command/look_command.h"

#include <cstdio>

#include "apps/training/classifier.h"
#include "apps/training/experiment.h"
#include "apps/training/pictures.h"
#include "apps/training/plots.h"
#include "data/check_data.h"
#include "data/png.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

void check_data_command(const Config& config) {
  const DataCheck check = check_data(open_data(data_options(config)));
  std::fputs(check.report.c_str(), stdout);
  std::fflush(stdout);
  if (!check.bad.empty() && config.text("data.on_bad_image") == "stop") {
    throw DataError(
        format("[data] {} of {} pictures can't be used, and the first of them would stop the training ({}); "
               "mend or remove them, or set data.on_bad_image=skip",
               check.bad.size(), check.pictures, check.bad.front()));
  }
}

void contact_sheet_command(const Config& config, const std::string& file, bool quiet) {
  const Experiment experiment = build_experiment(config);
  write_png(file, contact_sheet(config, experiment));
  if (!quiet) std::fprintf(stderr, "%s: what a model is trained on, with its labels\n", file.c_str());
}

void predict_command(const std::string& checkpoint, const std::vector<std::string>& images, Device device) {
  const Classifier classifier = Classifier::load(checkpoint, "", device);
  for (const std::string& image : images) {
    std::string text = image + "\n";
    for (const ClassScore& guess : classifier.predict(image)) {
      text += format("{:8.2f} %  {}\n", 100 * guess.probability, guess.name);
    }
    std::fputs(text.c_str(), stdout);
  }
  std::fflush(stdout);
}

void plot_command(const std::vector<std::string>& runs, const std::string& folder, bool quiet) {
  const std::string place = !folder.empty() ? folder : runs.size() == 1 ? runs.front() + "/plots" : "plots";
  const std::string trouble = plot_runs(runs, place);
  if (!trouble.empty()) throw IoError("[plots] no picture was drawn: " + trouble);
  if (!quiet) std::fprintf(stderr, "the pictures are in %s\n", place.c_str());
}

}  // namespace polygrad

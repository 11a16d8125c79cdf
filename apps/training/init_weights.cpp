#include "apps/training/init_weights.h"

#include <filesystem>

#include "apps/training/checkpoint.h"
#include "apps/training/experiment.h"
#include "apps/training/run_folder.h"
#include "engine/error.h"
#include "engine/format.h"
#include "models/weights.h"

namespace polygrad {

namespace {

std::string file_of(const std::string& path) {
  std::error_code none;
  if (!std::filesystem::is_directory(path, none)) return path;
  return find_checkpoint(path) + "/model.safetensors";
}

std::string list(const char* title, const std::vector<std::string>& names) {
  if (names.empty()) return "";
  std::string text = format(", {} {} (", names.size(), title);
  for (const std::string& name : names) text += (name == names.front() ? "" : ", ") + name;
  return text + ")";
}

// Of the checkpoint that the file is a part of, if it is. Throws IoError where that is damaged.
std::optional<CheckpointInfo> info_beside(const std::string& file) {
  const std::filesystem::path path(file);
  const std::string folder = path.parent_path().string();
  std::error_code none;
  if (!std::filesystem::exists(folder + "/state.json", none)) return std::nullopt;
  if (path.filename() == "model.safetensors") check_weights(folder);
  return read_checkpoint_info(folder);
}

// Checkpoints of early versions do not state the grid, but their configuration has it.
std::optional<Grid> grid_of_checkpoint(const CheckpointInfo& info, const std::string& table) {
  const auto classes = static_cast<std::int64_t>(info.class_names.size());
  for (const PositionTable& one : build_model(info.config, classes, info.preprocessing)->position_tables()) {
    if (one.name == table) return one.grid;
  }
  return std::nullopt;
}

}  // namespace

void check_finite_weights(const Module& model, const std::string& path) {
  for (const auto& [name, tensor] : model.state()) {
    if (is_floating(tensor.dtype()) && !all_finite(tensor)) {
      throw IoError(format("[weights] {}: {} holds a NaN or infinity; expected weights that were trained without one",
                           path, name));
    }
  }
}

std::string init_weights(Model& model, const std::string& path, const InitOptions& options,
                         const std::vector<std::string>& class_names) {
  const SafetensorsFile file(file_of(path));
  const std::optional<CheckpointInfo> info = info_beside(file.path());
  LoadOptions load{.strip_prefix = {},
                   .convert = {},
                   .allow_other_head = options.allow_other_head ? model.head_path() : "",
                   .positions = model.position_tables(),
                   .grid = options.grid};
  for (const PositionTable& table : load.positions) {
    const bool stated = load.grid || stored_grid(file.metadata(), table.name);
    if (!stated && info) load.grid = grid_of_checkpoint(*info, table.name);
  }
  LoadReport report;
  try {
    report = load_weights(model, file, load);
  } catch (const IoError& error) {
    const std::string text = error.what();
    const bool head = !options.allow_other_head && text.find("\n    " + model.head_path() + ".") != std::string::npos;
    if (!head) throw;
    throw IoError(text + ";\n  hint: a fresh classifier in place of the file's: --allow-other-head");
  }
  check_finite_weights(model, file.path());
  std::string text = format("{}: {} tensors loaded{}{}", file.path(), report.loaded, list("resized", report.resized),
                            list("left fresh", report.kept));
  if (info && report.kept.empty() && !info->class_names.empty() && info->class_names != class_names) {
    text += format("; as many classes, but others: the classifier knows {} ... {}", info->class_names.front(),
                   info->class_names.back());
  }
  return text;
}

}  // namespace polygrad

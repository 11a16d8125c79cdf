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

// Checkpoints of early versions do not state the grid, but the configuration beside them has it.
std::optional<Grid> grid_of_checkpoint(const SafetensorsFile& file, const PositionTable& table) {
  if (stored_grid(file.metadata(), table.name)) return std::nullopt;
  const std::string folder = std::filesystem::path(file.path()).parent_path().string();
  std::error_code none;
  if (!std::filesystem::exists(folder + "/state.json", none)) return std::nullopt;
  const CheckpointInfo info = read_checkpoint_info(folder);
  const auto classes = static_cast<std::int64_t>(info.class_names.size());
  for (const PositionTable& one : build_model(info.config, classes, info.preprocessing)->position_tables()) {
    if (one.name == table.name) return one.grid;
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

std::string init_weights(Model& model, const std::string& path, const InitOptions& options) {
  const SafetensorsFile file(file_of(path));
  LoadOptions load{.strip_prefix = {},
                   .convert = {},
                   .allow_other_head = options.allow_other_head ? model.head_path() : "",
                   .positions = model.position_tables(),
                   .grid = options.grid};
  for (const PositionTable& table : load.positions) {
    if (!load.grid) load.grid = grid_of_checkpoint(file, table);
  }
  LoadReport report;
  try {
    report = load_weights(model, file, load);
  } catch (const IoError& error) {
    const std::string text = error.what();
    const bool head = !options.allow_other_head && text.find("\n    " + model.head_path() + ".") != std::string::npos;
    if (!head) throw;
    throw IoError(text + "\n  hint: a fresh classifier in place of the file's: --allow-other-head");
  }
  check_finite_weights(model, file.path());
  return format("{}: {} tensors loaded{}{}", file.path(), report.loaded, list("resized", report.resized),
                list("left fresh", report.kept));
}

}  // namespace polygrad

#include "apps/training/resume.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "apps/training/run_folder.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

std::optional<std::string> find_resume(std::string& out, const std::string& resume) {
  if (resume.empty()) {
    if (!out.empty()) RunFolder(out).require_new();
    return std::nullopt;
  }
  if (resume == "auto") {
    if (out.empty()) throw ConfigError("[train] --resume auto needs the run folder (--out)");
    return RunFolder(out).newest_checkpoint();
  }
  const std::string checkpoint = find_checkpoint(resume);
  const std::string folder = run_folder_of(checkpoint);
  if (out.empty()) out = folder;
  std::error_code none;
  if (!std::filesystem::equivalent(out, folder, none)) {
    throw ConfigError(format(
        "[train] {} belongs to the run folder {}, not to --out {}; a run goes on in its own folder (for a new run "
        "from these weights: --init)",
        checkpoint, folder, out));
  }
  return checkpoint;
}

void check_same_run(const CheckpointInfo& old, const Config& config, const std::string& fingerprint,
                    const std::vector<std::string>& allowed, const std::string& lr_change) {
  const std::vector<ConfigDifference> differences = without_allowed(config_differences(old.config, config), allowed);
  if (!differences.empty()) {
    throw ConfigError(format(
        "[train] the configuration differs from the checkpoint's: {}{}; give the old values, or permit a key with "
        "--allow-change KEY",
        describe(differences), lr_change));
  }
  const bool data_allowed =
      std::any_of(allowed.begin(), allowed.end(), [](const std::string& key) { return key.rfind("data.", 0) == 0; });
  if (old.data_fingerprint != fingerprint && !data_allowed) {
    throw ConfigError(format(
        "[train] the data differ from the checkpoint's: {} -> {}; use the old data, or permit it with --allow-change "
        "data.root",
        old.data_fingerprint, fingerprint));
  }
}

}  // namespace polygrad

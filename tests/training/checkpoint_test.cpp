// Checkpoints that are damaged, mixed, of another version, or of the first one: each is taken whole or refused.
#include "apps/training/checkpoint.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "apps/training/classifier.h"
#include "apps/training/trainer.h"
#include "engine/error.h"
#include "engine/safetensors.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "tests/training/small_run.h"

using namespace polygrad;
using namespace polygrad::testing;
using doctest::Contains;
namespace fs = std::filesystem;

namespace {

const char* const kFiles[] = {"model.safetensors", "state.safetensors", "state.json"};

// As small as a vision transformer gets.
Config tiny_config(const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = {"model.embed_dim=8",  "model.num_heads=2", "model.depth=1",     "train.ema_decay=0.9",
                                  "train.accumulate=2", "probe.norms=true",  "train.keep_last=10"};
  all.insert(all.end(), more.begin(), more.end());
  return small_config(all);
}

TrainResult run(const Config& config, const std::string& folder, std::int64_t stop_after = -1) {
  Trainer trainer(config, small_experiment(config), {.out = folder, .resume = "auto"});
  std::stop_source stop;
  trainer.on_step = [&](const StepInfo& info) {
    if (info.step == stop_after) stop.request_stop();
  };
  return trainer.run(stop.get_token());
}

// What IoError a resume meets; "" where it meets none.
std::string refusal(const Config& config, const std::string& folder) {
  try {
    run(config, folder);
  } catch (const IoError& error) {
    return error.what();
  }
  return "";
}

std::string whole_folder(const std::string& folder) {
  std::string bytes;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths)
    bytes += path.string() + (fs::is_regular_file(path) ? read_bytes(path) : "") + "\n";
  return bytes;
}

void replace_in_file(const std::string& path, const std::string& old, const std::string& by) {
  std::string text = read_bytes(path);
  const std::size_t at = text.find(old);
  REQUIRE(at != std::string::npos);
  write_bytes(path, text.replace(at, old.size(), by));
}

// state.json as the first versions wrote it: without the hash of its own text.
void unseal(const std::string& path) {
  std::string text = read_bytes(path);
  const std::size_t at = text.rfind(",\n  \"hash\"");
  REQUIRE(at != std::string::npos);
  write_bytes(path, text.substr(0, at) + "\n}\n");
}

}  // namespace

TEST_CASE("a damaged file of the newest checkpoint is named and nothing else is taken or touched") {
  const TemporaryFolder folder;
  const Config config = tiny_config();
  run(config, folder / "good", 5);  // checkpoints of steps 4 and 5
  run(tiny_config({"seed=5"}), folder / "other", 5);
  for (const std::string file : kFiles) {
    const std::string original = read_bytes(folder / ("good/checkpoints/step-000005/" + file));
    const std::size_t size = original.size();
    std::vector<std::pair<std::string, std::string>> damages = {{"emptied", ""},
                                                                {"without its last byte", original.substr(0, size - 1)},
                                                                {"half", original.substr(0, size / 2)},
                                                                {"longer", original + "\n"}};
    for (const std::size_t at : {std::size_t{0}, size / 7, size / 3, size / 2, size - size / 5, size - 12}) {
      std::string flipped = original;
      flipped[at] = static_cast<char>(flipped[at] ^ 0x04);
      damages.emplace_back("a bit at " + std::to_string(at), flipped);
    }
    damages.emplace_back("of the step before", read_bytes(folder / ("good/checkpoints/step-000004/" + file)));
    if (file != "state.json") {
      damages.emplace_back("of another run", read_bytes(folder / ("other/checkpoints/step-000005/" + file)));
    }
    for (const auto& [what, bytes] : damages) {
      CAPTURE(file);
      CAPTURE(what);
      const std::string copy = folder / "copy", path = copy + "/checkpoints/step-000005/" + file;
      fs::remove_all(copy);
      fs::copy(folder / "good", copy, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
      write_bytes(path, bytes);
      const std::string before = whole_folder(copy);
      CHECK(refusal(config, copy).find(path) != std::string::npos);
      CHECK(whole_folder(copy) == before);
      // Evaluation and prediction look at what they use.
      if (file != "state.safetensors") CHECK_THROWS_AS(Classifier::load(copy + "/checkpoints/latest"), IoError);
    }
    const std::string copy = folder / "copy";
    fs::remove(copy + "/checkpoints/step-000005/" + file);
    CHECK(refusal(config, copy).find("step-000005 is damaged: it has no " + file) != std::string::npos);
    // The older one is there for who asks for it.
    Trainer older(config, small_experiment(config), {.out = copy, .resume = copy + "/checkpoints/step-000004"});
    CHECK(older.run().status == "done");
    CHECK(read_bytes(copy + "/checkpoints/latest/state.json").find("\"step\": 12") != std::string::npos);
  }
}

TEST_CASE("a folder that was renamed to another step is refused; one that was copied elsewhere is read") {
  const TemporaryFolder folder;
  run(tiny_config(), folder / "run", 2);
  const std::string checkpoints = folder / "run/checkpoints/";
  fs::copy(checkpoints + "step-000002", folder / "mine", fs::copy_options::recursive);
  CHECK(read_checkpoint_info(folder / "mine").state.step == 2);
  fs::rename(checkpoints + "step-000002", checkpoints + "step-000009");
  CHECK_THROWS_WITH_AS(read_checkpoint_info(checkpoints + "step-000009"), Contains("is of step 2"), IoError);
}

TEST_CASE("state.json that is no state, or of another format, is IoError with its path and the reason") {
  const TemporaryFolder folder;
  run(tiny_config(), folder / "run", 2);
  const std::string checkpoint = folder / "run/checkpoints/step-000002", path = checkpoint + "/state.json";
  unseal(path);
  const std::string original = read_bytes(path);
  CHECK(read_checkpoint_info(checkpoint).state.step == 2);
  struct Change {
    const char *old, *by, *says;
  };
  const Change changes[] = {
      {"\"format\": 1", "\"format\": 2", "made by a newer polygrad (0.1.0)"},
      {"\"format\": 1", "\"format\": 99999999999", "made by a newer polygrad (0.1.0)"},
      {"\"format\": 1", "\"format\": 0", "which no polygrad ever wrote"},
      {"\"format\": 1,", "", "no \"format\""},
      {"\"format\": 1", "\"format\": \"1\"", "damaged"},
      {"\"step\": 2", "\"step\": \"two\"", "damaged"},
      {"\"step\": 2", "\"step\": 2.5", "damaged"},
      {"\"step\": 2,", "", "no \"step\""},
      {"\"since_row\": {", "\"since_row\": [], \"x\": {", "damaged"},
      {"\"optimizer\": {", "\"optimiser\": {", "optimiser"},
      {"\"lr\": 0.003", "\"lr\": \"fast\"", "optimizer.lr"},
      {"{", "[", "damaged"},
  };
  for (const Change& change : changes) {
    CAPTURE(change.by);
    write_bytes(path, original);
    replace_in_file(path, change.old, change.by);
    CHECK_THROWS_WITH_AS(read_checkpoint_info(checkpoint), Contains(change.says), IoError);
    CHECK_THROWS_WITH_AS(read_checkpoint_info(checkpoint), Contains(path.c_str()), IoError);
  }
  write_bytes(path, original);
  replace_in_file(path, "\"best_step\": 0", "\"best_step\": 0, \"pending\": \"lunch\"");
  CHECK_THROWS_WITH_AS(read_checkpoint_info(checkpoint), Contains("lunch"), IoError);
}

TEST_CASE("a checkpoint of the first version loads, and its run goes on") {
  // data/early_checkpoint is of step 6, without what later versions added: hashes, batches_per_epoch, how a picture is
  // resized, a third of the configuration's keys; data.dev was a boolean.
  const TemporaryFolder folder;
  const std::string early = source_dir() + "/tests/training/data/early_checkpoint";
  const CheckpointInfo info = read_checkpoint_info(early);
  CHECK(info.state.step == 6);
  CHECK(info.state.batches_per_epoch == 0);
  CHECK(info.state.pending == Pending::none);
  CHECK(info.config.text("data.dev") == "holdout");
  CHECK(Classifier::load(early).class_names().size() == 5);

  const Config config = tiny_config();
  fs::create_directories(folder / "run/checkpoints");
  fs::copy(early, folder / "run/checkpoints/step-000006", fs::copy_options::recursive);
  const TrainResult result = run(config, folder / "run");
  CHECK(result.status == "done");
  CHECK(result.step == 12);
  run(config, folder / "whole");
  // Where it was made may have rounded otherwise than here.
  for (const char* file : {"model.safetensors", "state.safetensors"}) {
    const NamedTensors got = load_safetensors(folder / (std::string("run/checkpoints/latest/") + file));
    const NamedTensors expected = load_safetensors(folder / (std::string("whole/checkpoints/latest/") + file));
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      CHECK(got[i].first == expected[i].first);
      if (got[i].second.dtype() != DType::f32) continue;
      const std::vector<float> a = got[i].second.to_vector<float>(), b = expected[i].second.to_vector<float>();
      for (std::size_t k = 0; k < a.size(); ++k) CHECK(std::abs(a[k] - b[k]) < 2e-3f);
    }
  }
}

// A new run from trained weights: of a file, a checkpoint, a run; other classes, other image sizes; nothing silent.
#include "apps/training/init_weights.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "apps/training/trainer.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/file.h"
#include "engine/safetensors.h"
#include "models/weights.h"
#include "tests/support/temporary_folder.h"
#include "tests/training/small_run.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::unique_ptr<Model> model_of(const std::vector<std::string>& keys, std::int64_t classes = 5, std::int64_t height = 8,
                                std::int64_t width = 8) {
  std::vector<std::string> all = {"model.image_size=" + std::to_string(height) + "x" + std::to_string(width)};
  all.insert(all.end(), keys.begin(), keys.end());
  return build_model(small_config(all), classes,
                     {.channels = 1, .height = height, .width = width, .mean = {}, .stddev = {}});
}

const std::vector<std::string> kStripes = {"row 0", "row 1", "row 2", "row 3", "row 4"};

std::string init(Model& model, const std::string& path, const InitOptions& options = {}) {
  return init_weights(model, path, options, kStripes);
}

std::string refusal(Model& model, const std::string& path, const InitOptions& options = {}) {
  try {
    return "accepted: " + init(model, path, options);
  } catch (const IoError& error) {
    return error.what();
  }
}

// state.json as the first versions wrote it: later ones keep a hash of the weights, which tells any change.
void forget_hashes(const std::string& checkpoint) {
  std::string state = read_bytes(checkpoint + "/state.json");
  state.resize(state.rfind(",\n  \"files\""));
  write_bytes(checkpoint + "/state.json", state + "\n}\n");
}

}  // namespace

TEST_CASE("a file, a checkpoint and a run folder are the same weights") {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  const Config config = small_config({"train.epochs=1"});
  Trainer(config, small_experiment(config), {.out = run}).run();
  const NamedTensors expected = load_safetensors(run + "/checkpoints/latest/model.safetensors");
  for (const std::string& path : {run, run + "/checkpoints/latest", run + "/checkpoints/latest/model.safetensors"}) {
    const auto model = model_of({"seed=5"});
    const std::string text = init(*model, path, {});
    CHECK(contains(text, "model.safetensors: 32 tensors loaded"));
    CHECK_FALSE(contains(text, "resized"));
    CHECK_FALSE(contains(text, "fresh"));
    CHECK_FALSE(contains(text, "others"));
    CHECK(contains(init_weights(*model, path, {}, {"a", "b", "c", "d", "e"}),
                   "; as many classes, but others: the classifier knows row 0 ... row 4"));
    CHECK(fingerprint(model->state()) == fingerprint(expected));
  }
  CHECK_THROWS_AS(init(*model_of({}), folder / "nothing", {}), IoError);
}

TEST_CASE("a checkpoint's weights that are not those that were saved are refused") {
  const TemporaryFolder folder;
  const std::string run = folder / "run", file = run + "/checkpoints/latest/model.safetensors";
  const Config config = small_config({"train.epochs=1"});
  Trainer(config, small_experiment(config), {.out = run}).run();
  std::string bytes = read_file(file);
  bytes[bytes.size() - 4] ^= 1;  // the last bit of a weight
  write_file_atomically(file, bytes);
  for (const std::string& path : {run, file}) {
    CHECK(contains(refusal(*model_of({}), path), "model.safetensors is damaged, or of another checkpoint"));
  }
}

TEST_CASE("another number of classes is refused with its name, and allowed by a wish") {
  const TemporaryFolder folder;
  const std::string path = folder / "weights.safetensors";
  save_weights(path, *model_of({"seed=1"}, 9));
  const auto model = model_of({"seed=2"}, 5);
  const std::vector<float> head = model->find("head.weight").to_vector<float>();
  const std::string before = fingerprint(model->state()), text = refusal(*model, path);
  CHECK(contains(text, "head.weight: the model has (5, 12), the file (9, 12)"));
  CHECK(contains(text, "a fresh classifier in place of the file's: --allow-other-head"));
  CHECK(fingerprint(model->state()) == before);
  const std::string loaded = init(*model, path, {.allow_other_head = true});
  CHECK(contains(loaded, "30 tensors loaded, 2 left fresh (head.weight, head.bias)"));
  CHECK(model->find("head.weight").to_vector<float>() == head);
  // The wish covers the classifier and nothing else.
  save_weights(path, *model_of({"seed=1", "model.depth=1"}, 9));
  const std::string shallow = refusal(*model, path, {.allow_other_head = true});
  CHECK(contains(shallow, "missing (12):"));
  CHECK_FALSE(contains(shallow, "head"));
}

TEST_CASE("a run goes on on images of another size, from a checkpoint that states its grid") {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  const Config config = small_config({"train.epochs=1"});
  Trainer(config, small_experiment(config), {.out = run}).run();
  const std::string file = run + "/checkpoints/latest/model.safetensors";
  CHECK(SafetensorsFile(file).metadata().at("grid.pos_embed") == "2x2");
  const auto larger = model_of({}, 5, 12, 20);
  CHECK(contains(init(*larger, run, {}), "1 resized (pos_embed: 2x2 -> 3x5)"));
  CHECK(refusal(*larger, run, {.grid = Grid{1, 4}}).find("the file says that its grid is 2x2") != std::string::npos);
  // A file of an early version does not; the configuration beside it does, and a grid that is no square needs it.
  const NamedTensors weights = load_safetensors(file);
  save_safetensors(file, weights);
  forget_hashes(run + "/checkpoints/latest");
  CHECK(contains(init(*larger, run, {}), "1 resized (pos_embed: 2x2 -> 3x5)"));

  const std::string alone = folder / "alone.safetensors";
  save_safetensors(alone, model_of({}, 5, 8, 32)->state());  // 2 x 8
  const auto square = model_of({}, 5, 16, 16);               // 4 x 4, as many
  CHECK(contains(init(*square, alone, {.grid = Grid{2, 8}}), "1 resized (pos_embed: 2x8 -> 4x4)"));
  const auto wide = model_of({}, 5, 8, 32);
  CHECK(contains(refusal(*wide, alone), "--init-grid"));
  CHECK_FALSE(contains(init(*wide, alone, {.grid = Grid{2, 8}}), "resized"));
}

TEST_CASE("weights with a NaN are refused, by --init and by a resume, with file and tensor") {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  const Config config = small_config({"train.epochs=2", "train.max_steps=3"});
  Trainer(config, small_experiment(config), {.out = run}).run();
  const std::string file = run + "/checkpoints/latest/model.safetensors";
  NamedTensors weights = load_safetensors(file);
  for (auto& [name, tensor] : weights) {
    if (name == "norm.bias") tensor = full({12}, std::numeric_limits<double>::quiet_NaN());
  }
  save_safetensors(file, weights);
  forget_hashes(run + "/checkpoints/latest");
  CHECK(contains(refusal(*model_of({}), file), "model.safetensors: norm.bias holds a NaN or infinity"));
  Config longer = small_config({"train.epochs=2", "train.max_steps=9"});
  std::string text;
  try {
    Trainer(longer, small_experiment(longer), {.out = run, .resume = "auto", .allow_change = {"train.max_steps"}});
  } catch (const IoError& error) {
    text = error.what();
  }
  CHECK(contains(text, "norm.bias holds a NaN or infinity"));
}

TEST_CASE("a run from weights begins with them, says so, and its average too") {
  const TemporaryFolder folder;
  const std::string path = folder / "weights.safetensors";
  const auto source = model_of({"seed=3"}, 9);
  save_weights(path, *source, grid_metadata(source->position_tables()));
  const Config config = small_config(
      {"train.max_steps=1", "train.ema_decay=0.5", "optimizer.lr=0", "schedule.min_lr=0", "schedule.warmup_lr=0"});
  std::vector<std::string> said;
  TrainerOptions options{.out = folder / "run", .init = path, .init_options = {.allow_other_head = true}};
  options.report = [&](std::string_view line) { said.emplace_back(line); };
  Trainer(config, small_experiment(config), options).run();
  CHECK(std::count_if(said.begin(), said.end(), [](const std::string& line) {
          return contains(line, "weights    ") && contains(line, "2 left fresh (head.weight, head.bias)");
        }) == 1);
  const NamedTensors state = load_safetensors(folder / "run/checkpoints/latest/state.safetensors");
  for (const auto& [name, tensor] : state) {
    if (name == "ema.norm.weight" || name == "ema.cls_token") {
      CHECK(tensor.to_vector<float>() == source->find(name.substr(4)).to_vector<float>());
    }
  }
}

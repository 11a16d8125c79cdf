// Configurations: files, presets, --set; every wrong key and value with its place and the nearest right one.
#include "apps/training/config.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "apps/training/config_schema.h"
#include "apps/training/presets.h"
#include "engine/error.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using doctest::Contains;
using testing::TemporaryFolder;
using testing::write_bytes;

namespace {

std::string error_of(const std::string& text) {
  try {
    Config::from_text(text, "runs/my.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

std::string set_error(const std::string& assignment) {
  try {
    Config().set(assignment);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

Config with(const std::vector<std::string>& assignments) {
  Config config;
  for (const std::string& assignment : assignments) config.set(assignment);
  return config;
}

}  // namespace

TEST_CASE("every default is a value that its key takes; the names are unique") {
  const Config config;  // checks each default
  std::set<std::string> names;
  for (const ConfigKey& key : config_keys()) {
    CHECK(names.insert(key.name).second);
    CHECK_FALSE(config.is_set(key.name));
    CHECK(config.is_null(key.name) == key.optional());
  }
}

TEST_CASE("the keys of the contract are there") {
  for (const char* name : {"model.name",
                           "model.image_size",
                           "model.patch_size",
                           "model.in_channels",
                           "model.embed_dim",
                           "model.depth",
                           "model.num_heads",
                           "model.mlp_ratio",
                           "model.dropout",
                           "model.drop_path",
                           "model.class_token",
                           "model.pool",
                           "model.pool_over_padding",
                           "model.swin_pad",
                           "model.num_classes",
                           "attention.phi",
                           "attention.scale",
                           "attention.path",
                           "attention.dropout",
                           "attention.bias_position",
                           "attention.class_attention_phi",
                           "data.name",
                           "data.root",
                           "data.workers",
                           "data.val_fraction",
                           "data.limit_train",
                           "data.limit_val",
                           "data.on_bad_image",
                           "data.exif",
                           "data.text_length",
                           "data.mask_zero_pixels",
                           "data.dev",
                           "augment.preset",
                           "augment.flip",
                           "augment.crop_padding",
                           "augment.mixup",
                           "augment.cutmix",
                           "augment.random_erasing",
                           "augment.randaugment",
                           "augment.repeated",
                           "optimizer.name",
                           "optimizer.lr",
                           "optimizer.weight_decay",
                           "optimizer.betas",
                           "optimizer.eps",
                           "optimizer.momentum",
                           "schedule.name",
                           "schedule.warmup_steps",
                           "schedule.warmup_epochs",
                           "schedule.warmup_lr",
                           "schedule.min_lr",
                           "schedule.unit",
                           "schedule.warmup_prefix",
                           "schedule.anneal",
                           "train.batch_size",
                           "train.accumulate",
                           "train.drop_last",
                           "train.epochs",
                           "train.max_steps",
                           "train.clip_grad",
                           "train.label_smoothing",
                           "train.ema_decay",
                           "train.precision",
                           "train.eval_every_steps",
                           "train.checkpoint_every_steps",
                           "train.keep_last",
                           "train.log_every_steps",
                           "train.tensorboard",
                           "probe.norms",
                           "probe.every_steps",
                           "probe.samples",
                           "probe.maps",
                           "seed",
                           "device",
                           "threads",
                           "eval.weights",
                           "eval.split",
                           "attention.divisor"}) {
    CHECK_MESSAGE(find_config_key(name) != nullptr, name);
  }
  const std::string help = config_help();
  for (const ConfigKey& key : config_keys()) CHECK(help.find(std::string("  ") + key.name + " ") != std::string::npos);
}

TEST_CASE("a file sets keys; the others keep their defaults; the name is its stem") {
  const Config config = Config::from_text(
      R"({"model": {"depth": 4, "patch_size": [7, 14]}, "optimizer": {"lr": 2e-3}, "seed": 18446744073709551615,
          "attention": {"phi": ["x3", "x1", "softmax"], "divisor": 16}})",
      "some/where/tiny.json");
  CHECK(config.name() == "tiny");
  CHECK(config.integer("model.depth") == 4);
  CHECK(config.size("model.patch_size") == std::pair<std::int64_t, std::int64_t>{7, 14});
  CHECK(config.number("optimizer.lr") == 2e-3);
  CHECK(config.seed("seed") == 18446744073709551615u);
  CHECK(config.activations("attention.phi") == std::vector<std::string>{"x3", "x", "softmax"});
  CHECK(config.divisor("attention.scale") == "16");
  CHECK(config.is_set("attention.scale"));
  CHECK(config.integer("train.batch_size") == 128);
  CHECK_FALSE(config.is_set("train.batch_size"));
}

TEST_CASE("unknown keys: file, line, key path, nearest key") {
  CHECK(error_of("{\"optimizer\": {\n  \"lr\": 1,\n  \"weigth_decay\": 1}}") ==
        "[config] runs/my.json:3: unknown key optimizer.weigth_decay; did you mean optimizer.weight_decay?");
  CHECK(error_of("{\"optimizer\": {\"learning-rate\": 1}}") ==
        "[config] runs/my.json:1: unknown key optimizer.learning-rate; did you mean optimizer.lr?");
  CHECK(error_of("{\"train\": {\"batch-size\": 1}}") ==
        "[config] runs/my.json:1: unknown key train.batch-size; did you mean train.batch_size?");
  CHECK(error_of("{\"optimizer\": {\"batch_size\": 1}}") ==  // the wrong section
        "[config] runs/my.json:1: unknown key optimizer.batch_size; did you mean train.batch_size?");
  CHECK(error_of("{\"lr\": 1}") == "[config] runs/my.json:1: unknown key lr; did you mean optimizer.lr?");
  CHECK(error_of("{\"optimiser\": {\"eps\": 1}}") ==
        "[config] runs/my.json:1: unknown key optimiser.eps; did you mean optimizer.eps?");
  CHECK(error_of("{\"optimizer.lr\": 1}") ==
        "[config] runs/my.json:1: unknown key optimizer.lr; did you mean optimizer.lr?");
  CHECK(error_of("{\"model\": {\"nmae\": \"x\"}}") ==
        "[config] runs/my.json:1: unknown key model.nmae; did you mean model.name?");
  CHECK(error_of("{\"sed\": 1}") == "[config] runs/my.json:1: unknown key sed; did you mean seed?");
  CHECK(error_of("{\"foo\": {\"bar\": 1}}") == "[config] runs/my.json:1: unknown key foo.bar; --help-config lists all");
  CHECK(error_of("{\"colour\": 1}") == "[config] runs/my.json:1: unknown key colour; --help-config lists all");
  CHECK(error_of("{\"model\": 3}") ==
        "[config] runs/my.json:1: model is a section; expected an object, got the number 3");
  CHECK(error_of("[]") == "[config] runs/my.json:1: expected an object, got a list of 0");
}

TEST_CASE("wrong types: the key, what it takes, what came") {
  CHECK(error_of("{\"optimizer\": {\"lr\": \"1e-3\"}}") ==
        "[config] runs/my.json:1: optimizer.lr: expected a number >= 0, got the text \"1e-3\"");
  CHECK(error_of("{\"train\": {\"clip_grad\": true}}") ==
        "[config] runs/my.json:1: train.clip_grad: expected a number >= 0, got true");
  CHECK(error_of("{\"train\": {\"batch_size\": 1.5}}") ==
        "[config] runs/my.json:1: train.batch_size: expected a whole number >= 1, got the number 1.5");
  CHECK(error_of("{\"train\": {\"batch_size\": null}}") ==
        "[config] runs/my.json:1: train.batch_size: expected a whole number >= 1, got null");
  CHECK(error_of("{\"model\": {\"dropout\": 1}}") ==
        "[config] runs/my.json:1: model.dropout: expected a number from 0 to 0.999, got the number 1");
  CHECK(error_of("{\"schedule\": {\"name\": \"cosin\"}}") ==
        "[config] runs/my.json:1: schedule.name: expected one of cosine, one_cycle, step, constant, got the text "
        "\"cosin\"");
  CHECK(error_of("{\"seed\": -1}") ==
        "[config] runs/my.json:1: seed: expected a whole number from 0 to 18446744073709551615, got the number -1");
  CHECK(error_of("{\"optimizer\": {\"betas\": [0.9]}}") ==
        "[config] runs/my.json:1: optimizer.betas: expected a list of 2 numbers from 0 to 1, got [0.9]");
  CHECK(error_of("{\"optimizer\": {\"betas\": [0.9, 1.5]}}") ==
        "[config] runs/my.json:1: optimizer.betas: expected a list of 2 numbers from 0 to 1, got [0.9,1.5]");
  CHECK(error_of("{\"probe\": {\"norms\": 1}}") ==
        "[config] runs/my.json:1: probe.norms: expected true or false, got the number 1");
  CHECK(
      error_of("{\"attention\": {\"phi\": \"x10\"}}") ==
      "[config] runs/my.json:1: attention.phi: expected one of softmax, x, x2, x3, x^p (p = 1 ... 9), relu, elu, gelu, "
      "tanh, exp, exp_neg, or a list with one per layer, got the text \"x10\"");
  CHECK(error_of("{\"attention\": {\"scale\": 0}}") ==
        "[config] runs/my.json:1: attention.scale: expected a number > 0, sqrt_n, n or auto, got the number 0");
  CHECK(
      error_of("{\"model\": {\"patch_size\": [4, 4, 4]}}") ==
      "[config] runs/my.json:1: model.patch_size: expected a size: a number, [height, width] or 16x32, or null, got a "
      "list of 3");
}

TEST_CASE("duplicates, comments, numbers out of range come from the reader") {
  CHECK(error_of("{\"model\": {\"name\": \"vit_tiny\"},\n \"model\": {\"name\": \"vit_small\"}}") ==
        "[json] runs/my.json:2: duplicate key (at model)");
  CHECK(error_of("{\"optimizer\": {\"lr\": 1e400}}") ==
        "[json] runs/my.json:1: the number 1e400 is out of range (at optimizer.lr)");
  CHECK(error_of("{\"attention\": {\"scale\": 4, \"divisor\": 5}}") ==
        "[config] runs/my.json:1: attention.scale is given twice (as attention.divisor here)");
}

TEST_CASE("--set takes JSON, bare words and bare lists") {
  CHECK(with({"optimizer.lr=3e-4"}).number("optimizer.lr") == 3e-4);
  CHECK(with({"probe.norms=true"}).flag("probe.norms"));
  using Size = std::pair<std::int64_t, std::int64_t>;
  CHECK(with({"model.patch_size=16x32"}).size("model.patch_size") == Size{16, 32});
  CHECK(with({"model.patch_size=[16, 32]"}).size("model.patch_size") == Size{16, 32});
  CHECK(with({"model.patch_size=4"}).size("model.patch_size") == Size{4, 4});
  CHECK(with({"attention.scale=sqrt_n"}).divisor("attention.scale") == "sqrt_n");
  CHECK(with({"attention.divisor=16"}).divisor("attention.scale") == "16");
  CHECK(with({"attention.phi=x^5"}).activations("attention.phi") == std::vector<std::string>{"x^5"});
  const std::vector<std::string> two = {"x3", "relu"};
  CHECK(with({"attention.phi=x3,relu"}).activations("attention.phi") == two);
  CHECK(with({"attention.phi=[x3, relu]"}).activations("attention.phi") == two);
  CHECK(with({"attention.phi=[\"x3\", \"relu\"]"}).activations("attention.phi") == two);
  CHECK(with({"optimizer.betas=0.9,0.95"}).numbers("optimizer.betas") == std::vector<double>{0.9, 0.95});
  CHECK(with({"seed=18446744073709551615"}).seed("seed") == 18446744073709551615u);
  CHECK(with({"data.root=/a/b c=d"}).text("data.root") == "/a/b c=d");
  CHECK(with({"data.root=123"}).text("data.root") == "123");
  CHECK(with({"data.root=\"quoted\""}).text("data.root") == "quoted");
  CHECK(with({"data.root="}).text("data.root").empty());
  CHECK(with({" train.epochs = 3 "}).number("train.epochs") == 3);
  CHECK(with({"train.epochs=3", "train.epochs=5"}).number("train.epochs") == 5);
  CHECK(with({"data.limit_val=5", "data.limit_val=null"}).is_null("data.limit_val"));
}

TEST_CASE("--set errors name the assignment") {
  CHECK(set_error("optimizer.weigth_decay=1") ==
        "[config] --set optimizer.weigth_decay=1: unknown key optimizer.weigth_decay; did you mean "
        "optimizer.weight_decay?");
  CHECK(set_error("optimizer={}") ==
        "[config] --set optimizer={}: optimizer is a section; expected one of its keys, SECTION.KEY");
  CHECK(set_error("foo.bar=1") == "[config] --set foo.bar=1: unknown key foo.bar; --help-config lists all");
  CHECK(set_error("optimizer.lr=\"fast\"") ==
        "[config] --set optimizer.lr=\"fast\": optimizer.lr: expected a number >= 0, got the text \"fast\"");
  CHECK(set_error("optimizer.lr=fast") ==
        "[config] --set optimizer.lr=fast: optimizer.lr: expected a number >= 0, got the text \"fast\"");
  CHECK(set_error("optimizer.lr=1e400") == "[json] --set optimizer.lr=1e400:1: the number 1e400 is out of range");
  CHECK(set_error("optimizer.lr") == "[config] --set optimizer.lr: expected key=value");
  CHECK(set_error("=3") == "[config] --set =3: expected key=value");
  CHECK(
      set_error("model.patch_size=16x") ==
      "[config] --set model.patch_size=16x: model.patch_size: expected a size: a number, [height, width] or 16x32, or "
      "null, got the text \"16x\"");
  CHECK(set_error("train.batch_size=0") ==
        "[config] --set train.batch_size=0: train.batch_size: expected a whole number >= 1, got the number 0");
}

TEST_CASE("the effective configuration has all keys, and reads back equal") {
  const Config config = with({"attention.phi=x3,x2", "model.patch_size=16x32", "optimizer.lr=0.1", "probe.norms=true",
                              "seed=18446744073709551615", "data.root=/some/where"});
  const Config again = Config::from_text(config.json(), "config.json");
  for (const ConfigKey& key : config_keys()) {
    CHECK_MESSAGE(again.value(key.name) == config.value(key.name), key.name);
    CHECK(again.is_set(key.name));
  }
  CHECK(again.json() == config.json());
}

TEST_CASE("differences: changed keys with old and new value, but not those that do not change the result") {
  const Config old_config = with({"optimizer.lr=1e-3", "model.patch_size=4", "train.epochs=10"});
  const Config same = with(
      {"optimizer.lr=0.001", "model.patch_size=4x4", "train.epochs=10", "threads=7", "data.workers=3", "device=cpu"});
  CHECK(config_differences(old_config, same).empty());
  const Config other = with({"optimizer.lr=2e-3", "model.patch_size=4", "train.epochs=20"});
  const auto differences = config_differences(old_config, other);
  CHECK(describe(differences) == "optimizer.lr: 0.001 -> 0.002; train.epochs: 10 -> 20");
  CHECK(describe(without_allowed(differences, {"train.epochs"})) == "optimizer.lr: 0.001 -> 0.002");
  CHECK(without_allowed(differences, {"train.epochs", "optimizer.lr"}).empty());
  CHECK_THROWS_WITH_AS(without_allowed(differences, {"epoch"}),
                       "[config] --allow-change epoch: unknown key epoch; did you mean train.epochs?", ConfigError);
}

TEST_CASE("a key read as another type is a mistake of the program") {
  const Config config;
  CHECK_THROWS_AS(config.number("optimizer.learning_rate"), InternalError);
  CHECK_THROWS_AS(config.flag("optimizer.lr"), InternalError);
  CHECK_THROWS_AS(config.text("optimizer.lr"), InternalError);
  CHECK_THROWS_AS(config.number("data.val_fraction"), InternalError);  // null
  CHECK(config.number_or("data.val_fraction", 0.25) == 0.25);
  CHECK(config.integer_or("train.max_steps", 7) == 7);
  CHECK(config.flag_or("augment.flip", true));
}

TEST_CASE("augmentation: the preset, then single switches") {
  CHECK_FALSE(augment_settings(with({})).flip);
  const AugmentSettings light = augment_settings(with({"augment.preset=light"}));
  CHECK(light.flip);
  CHECK(light.crop_padding == 4);
  CHECK(light.mixup == 0);
  const AugmentSettings changed =
      augment_settings(with({"augment.preset=light", "augment.flip=false", "augment.mixup=0.8"}));
  CHECK_FALSE(changed.flip);
  CHECK(changed.mixup == 0.8);
  const AugmentSettings full =
      augment_settings(with({"augment.preset=full", "augment.randaugment=false", "augment.random_erasing=0"}));
  CHECK(full.cutmix == 1);
  CHECK_FALSE(full.randaugment);
  CHECK(full.random_erasing == 0);
  const AugmentSettings whole = augment_settings(with({"augment.preset=full", "augment.repeated=3"}));
  CHECK((whole.resized_crop && whole.randaugment && whole.flip));
  CHECK((whole.random_erasing == 0.25 && whole.mixup == 0.8 && whole.cutmix == 1 && whole.crop_padding == 0));
  CHECK((whole.repeated == 3 && whole.crop_scale == std::array<double, 2>{0.08, 1}));
  CHECK_THROWS_WITH_AS(augment_settings(with({"augment.crop_scale=[0.5, 0.2]"})),
                       "[config] augment.crop_scale: [0.5, 0.2]; expected the smaller share first", ConfigError);
}

TEST_CASE("--config: a file, a preset by its bare name, or an error that says what was tried") {
  const TemporaryFolder folder;
  write_bytes(folder / "mine.json", "{\"seed\": 5}");
  CHECK(Config::from_file(folder / "mine.json").seed("seed") == 5);
  CHECK_THROWS_WITH_AS(Config::from_file(folder / "none.json"),
                       ("[config] --config " + (folder / "none.json") + ": there is no such file").c_str(),
                       ConfigError);
  CHECK_THROWS_WITH_AS(Config::from_file(folder.path()),
                       ("[config] --config " + folder.path() + ": is a folder; expected a file").c_str(), ConfigError);

  setenv("POLYGRAD_EXPERIMENTS", folder.path().c_str(), 1);
  CHECK(Config::from_file("mine").seed("seed") == 5);
  CHECK(Config::from_file("mine").name() == "mine");
  {  // a run folder of the preset's name, where the program was started
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::create_directory(folder / "start");
    std::filesystem::create_directory(folder / "start/mine");
    std::filesystem::current_path(folder / "start");
    CHECK(Config::from_file("mine").seed("seed") == 5);
    std::filesystem::current_path(before);
  }
  CHECK(preset_names() == std::vector<std::string>{"mine"});
  CHECK_THROWS_WITH_AS(Config::from_file("mina"),
                       ("[config] --config mina: there is no such file, and no preset of that name in " +
                        folder.path() + "; did you mean mine?")
                           .c_str(),
                       ConfigError);
  unsetenv("POLYGRAD_EXPERIMENTS");
}

TEST_CASE("the presets that come with polygrad are found beside the program, and read") {
  const auto names = preset_names();
  CHECK(std::count(names.begin(), names.end(), "fashion_mnist") == 1);
  for (const std::string& name : names) CHECK(Config::from_file(name).name() == name);
  const Config config = Config::from_file("fashion_mnist");
  CHECK(config.activations("attention.phi") == std::vector<std::string>{"x3"});
  CHECK(config.divisor("attention.scale") == "auto");
  CHECK(config.flag("probe.norms"));
}

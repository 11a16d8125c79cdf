// A model trained on folders of pictures: evaluated in other layouts, asked by applications, shown on sheets.
#include "apps/training/classifier.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <thread>

#include "apps/training/checkpoint_eval.h"
#include "apps/training/pictures.h"
#include "apps/training/trainer.h"
#include "data/color.h"
#include "data/decode.h"
#include "engine/error.h"
#include "engine/log.h"
#include "tests/data/picture_folder.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using namespace polygrad::testing;
using doctest::Contains;

namespace {

const std::vector<std::string> kNames = {"red", "green", "blue", "grey"};

// ROOT/train and ROOT/val: pictures of four colours and several sizes.
void write_set(const std::string& root) {
  for (int kind = 0; kind < 4; ++kind) {
    write_class(root + "/train/" + kNames[static_cast<std::size_t>(kind)], kind, 10);
    write_class(root + "/val/" + kNames[static_cast<std::size_t>(kind)], kind, 4, 100);
    write_picture(root + "/train/" + kNames[static_cast<std::size_t>(kind)] + "/large.png",
                  small_picture(kind == 0 ? 210 : 60, kind == 1 ? 210 : 60, kind == 2 ? 210 : 60, 7, 20, 30));
  }
}

Config colour_config(const std::string& root, const std::vector<std::string>& extra = {}) {
  Config config;
  for (const std::string& assignment :
       {std::string("data.name=image_folder"), "data.root=" + root, std::string("model.name=vit_tiny"),
        std::string("model.image_size=8"), std::string("model.patch_size=4"), std::string("model.embed_dim=12"),
        std::string("model.num_heads=3"), std::string("model.depth=2"), std::string("attention.phi=x3"),
        std::string("train.batch_size=11"), std::string("train.epochs=25"), std::string("optimizer.lr=0.01"),
        std::string("train.eval_every_steps=0"), std::string("train.checkpoint_every_steps=0")}) {
    config.set(assignment);
  }
  for (const std::string& assignment : extra) config.set(assignment);
  return config;
}

// By the file's name: label, prediction, probability.
std::map<std::string, std::string> rows_of(const CheckpointEval& eval) {
  std::map<std::string, std::string> rows;
  for (const Prediction& p : eval.predictions) {
    const std::string path = eval.data.dataset->describe(p.index);
    const std::string kind = std::filesystem::path(path).parent_path().filename().string();
    rows[kind + "/" + std::filesystem::path(path).filename().string()] =
        std::to_string(p.label) + " " + std::to_string(p.predicted) + " " + std::to_string(p.probability);
  }
  return rows;
}

CheckpointEval evaluate_on(const std::string& checkpoint, const std::string& root,
                           const std::vector<std::string>& set = {}) {
  const CheckpointInfo info = read_checkpoint_info(checkpoint);
  Config config = info.config;
  config.set("data.root=" + root);
  for (const std::string& assignment : set) config.set(assignment);
  return evaluate_checkpoint(checkpoint, info, config);
}

}  // namespace

TEST_CASE("trained on pictures: the same predictions in every layout, from files, from tensors, by the classifier") {
  const TemporaryFolder folder;
  write_set(folder / "set");
  Trainer trainer(colour_config(folder / "set"), {.out = folder / "run"});
  CHECK(*trainer.run().best_top1 == 100);
  const std::string checkpoint = find_checkpoint(folder / "run");
  const CheckpointInfo info = read_checkpoint_info(checkpoint);
  CHECK(info.class_names == std::vector<std::string>{"blue", "green", "grey", "red"});
  CHECK(info.preprocessing.resize == 9);  // 8 / 0.875
  CHECK(info.preprocessing.mean == std::vector<double>{0.485, 0.456, 0.406});

  const CheckpointEval whole = evaluate_on(checkpoint, folder / "set");
  CHECK(whole.result.count == 16);
  CHECK(whole.result.top1 == 100);
  CHECK(whole.data.split == "val");
  CHECK(whole.epoch == doctest::Approx(25));
  const auto expected = rows_of(whole);
  // Only the val folder; its classes alone; some of them; in other folders; all pictures beside a class without any.
  CHECK(rows_of(evaluate_on(checkpoint, folder / "set/val")) == expected);
  for (const char* name : {"red", "blue"}) {
    std::filesystem::create_directories(folder / "some");
    std::filesystem::copy(folder / ("set/val/" + std::string(name)), folder / ("some/" + std::string(name)));
  }
  std::filesystem::create_directories(folder / "some/unknown");  // without pictures it asks nothing
  const auto some = rows_of(evaluate_on(checkpoint, folder / "some"));
  CHECK(some.size() == 8);
  for (const auto& [path, row] : some) CHECK(expected.at(path) == row);
  write_class(folder / "some/unknown", 1, 1);
  CHECK_THROWS_WITH_AS(evaluate_on(checkpoint, folder / "some"), Contains("the class 'unknown' (1 samples"), DataError);

  // The same through the door for applications.
  const Classifier classifier = Classifier::load(folder / "run");
  CHECK(classifier.class_names() == info.class_names);
  for (const Prediction& p : whole.predictions) {
    const std::string path = whole.data.dataset->describe(p.index);
    const std::vector<ClassScore> scores = classifier.predict(path);
    REQUIRE(scores.size() == 4);  // of four classes
    CHECK(scores[0].index == p.predicted);
    CHECK(scores[0].name == info.class_names[static_cast<std::size_t>(p.predicted)]);
    CHECK(scores[0].probability == doctest::Approx(p.probability).epsilon(1e-5));
    double sum = 0;
    for (const ClassScore& score : scores) sum += score.probability;
    CHECK(sum == doctest::Approx(1));
    CHECK((scores[0].probability >= scores[1].probability && scores[2].probability >= scores[3].probability));
    CHECK(classifier.predict(read_image(path), 2).size() == 2);
    CHECK(classifier.predict(read_image(path), 1)[0].probability == scores[0].probability);
  }
  CHECK(classifier.predict(folder / "set/train/blue/large.png")[0].name == "blue");
  CHECK(classifier.predict(small_picture(200, 40, 40, 3, 50, 20))[0].name == "red");
  CHECK(classifier.predict(to_grey(small_picture(200, 200, 200, 3)))[0].name == "grey");  // one channel for three
  write_bytes(folder / "x.jpg", "hello");
  CHECK_THROWS_WITH_AS(classifier.predict(folder / "x.jpg"), Contains("x.jpg (5 bytes): corrupt"), ImageError);
  CHECK_THROWS_AS(classifier.predict(Tensor::from_vector<float>({1, 2})), ShapeError);
  // Threads may ask at once.
  std::vector<std::thread> threads;
  std::vector<int> right(4, 0);
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i) {
        right[t] += classifier.predict(folder / ("set/val/" + kNames[t] + "/0.png"))[0].name == kNames[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == std::vector<int>(4, 5));

  // predictions.csv and the picture of the confusions.
  write_predictions(folder / "eval", *whole.data.dataset, whole.predictions);
  const std::string csv = read_bytes(folder / "eval/predictions.csv");
  CHECK(csv.find(folder / "set/val/blue/0.png" + ",blue,blue,") != std::string::npos);
  const Tensor picture = read_image(folder / "eval/confusion.png");
  CHECK(picture.size(1) > 4 * 24);
}

TEST_CASE("the full augmentation trains, the same for any number of workers and across a resume") {
  const TemporaryFolder folder;
  write_set(folder / "set");
  const std::vector<std::string> settings = {"augment.preset=full", "augment.repeated=2", "train.epochs=3",
                                             "train.log_every_steps=1", "train.label_smoothing=0.1"};
  std::vector<std::string> logs;
  for (const int workers : {0, 2}) {
    Config config = colour_config(folder / "set", settings);
    config.set("data.workers=" + std::to_string(workers));
    const std::string out = folder / ("run" + std::to_string(workers));
    Trainer(config, {.out = out}).run();
    logs.push_back(read_bytes(out + "/checkpoints/latest/model.safetensors"));
  }
  CHECK(logs[0] == logs[1]);
  Config part = colour_config(folder / "set", settings);
  part.set("train.max_steps=5");
  Trainer(part, {.out = folder / "resumed"}).run();
  Trainer(colour_config(folder / "set", settings),
          {.out = folder / "resumed", .resume = "auto", .allow_change = {"train.max_steps"}})
      .run();
  CHECK(read_bytes(folder / "resumed/checkpoints/latest/model.safetensors") == logs[0]);
}

TEST_CASE("a broken picture: training stops with its path, or goes on with another; evaluation leaves it out") {
  const TemporaryFolder folder;
  write_set(folder / "set");
  write_bytes(folder / "set/train/red/0.png", "broken");
  write_bytes(folder / "set/val/blue/1.png", "");
  CHECK_THROWS_WITH_AS(Trainer(colour_config(folder / "set", {"train.epochs=1"}), {.out = folder / "stop"}).run(),
                       Contains("set/train/red/0.png (6 bytes): corrupt"), ImageError);
  std::vector<std::string> lines, warnings;
  set_log_sink([&](LogLevel, std::string_view text) { warnings.emplace_back(text); });
  TrainerOptions options{.out = folder / "skip"};
  options.report = [&](std::string_view line) { lines.emplace_back(line); };
  Trainer trainer(colour_config(folder / "set", {"train.epochs=25", "data.on_bad_image=skip"}), options);
  const TrainResult result = trainer.run();
  set_log_sink({});
  CHECK(result.step == 100);  // an epoch has as many steps as without the fault
  CHECK(warnings.size() >= 2);
  CHECK(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("1 training pictures could not be used") != std::string::npos;
  }));
  const CheckpointEval eval = evaluate_on(find_checkpoint(folder / "skip"), folder / "set");
  CHECK(eval.result.count == 15);
  CHECK(eval.result.skipped == 1);
  CHECK(eval.predictions.size() == 15);
}

TEST_CASE("grey models take pictures of colour, and the other settings of the input reach the checkpoint") {
  const TemporaryFolder folder;
  write_set(folder / "set");
  Trainer(
      colour_config(folder / "set", {"model.in_channels=1", "train.epochs=1", "data.mean=[0.5]", "data.stddev=[0.25]",
                                     "data.crop_ratio=1", "data.exif=true", "augment.preset=light"}),
      {.out = folder / "run"})
      .run();
  const Classifier classifier = Classifier::load(folder / "run/checkpoints/latest");
  const Preprocessing expected{
      .channels = 1, .height = 8, .width = 8, .mean = {0.5}, .stddev = {0.25}, .resize = 8, .exif = true};
  CHECK(classifier.preprocessing() == expected);
  const auto scores = classifier.predict(folder / "set/val/red/0.png");
  CHECK(scores[0].probability == doctest::Approx(classifier.predict(small_picture(200, 40, 40, 100))[0].probability));
  CHECK(evaluate_on(find_checkpoint(folder / "run"), folder / "set").result.count == 16);
  CHECK_THROWS_WITH_AS(Trainer(colour_config(folder / "set", {"data.mean=[0.5, 0.5]"}), {}),
                       Contains("data.mean: 2 numbers for images with 3 channels"), ConfigError);
}

TEST_CASE("a classifier computes as the evaluation does: in the training's precision") {
  if (!precision_obstacle(Precision::bf16).empty()) return skip("no bf16 units: this CPU, or no oneDNN in this build");
  const TemporaryFolder folder;
  write_set(folder / "set");
  Trainer(colour_config(folder / "set", {"train.precision=bf16", "train.epochs=2"}), {.out = folder / "run"}).run();
  const CheckpointEval eval = evaluate_on(find_checkpoint(folder / "run"), folder / "set");
  CHECK(eval.precision == Precision::bf16);
  const Classifier classifier = Classifier::load(folder / "run");
  for (const Prediction& p : eval.predictions) {
    const ClassScore best = classifier.predict(eval.data.dataset->describe(p.index), 1)[0];
    CHECK(best.index == p.predicted);
    CHECK(best.probability == doctest::Approx(p.probability).epsilon(1e-5));
  }
}

TEST_CASE("a contact sheet shows what the model gets, mixing included") {
  const TemporaryFolder folder;
  write_set(folder / "set");
  const Config plain = colour_config(folder / "set", {"model.image_size=32"});
  const Tensor sheet = contact_sheet(plain, build_experiment(plain));
  CHECK(sheet.size(0) == 3);
  CHECK(sheet.size(1) == 2 * (96 + 20 + 6) + 6);  // 11 pictures, 8 in a row, three times their size
  CHECK(sheet.size(2) == 8 * (96 + 6) + 6);
  // The first picture's middle has the colour of its class.
  Loader loader(build_experiment(plain).train, training_loader(plain, build_experiment(plain)));
  const std::int64_t label = loader.next()->labels.data<std::int64_t>()[0];
  const auto pixels = sheet.to_vector<std::uint8_t>();
  const std::size_t plane = pixels.size() / 3, middle = static_cast<std::size_t>((6 + 48) * sheet.size(2) + 6 + 48);
  const std::vector<int> own = {pixels[middle], pixels[plane + middle], pixels[2 * plane + middle]};
  const std::map<std::int64_t, std::size_t> bright = {{0, 2}, {1, 1}, {3, 0}};  // blue, green, red
  for (std::size_t c = 0; c < 3; ++c) {
    const bool is_bright = label == 2 ? true : bright.at(label) == c;
    CHECK((own[c] > 150) == is_bright);
  }
  const Config full = colour_config(folder / "set", {"augment.preset=full"});
  CHECK(contact_sheet(full, build_experiment(full), 4).size(2) == 4 * (96 + 6) + 6);
  CHECK_THROWS_AS(contact_sheet(full, build_experiment(full), 0), ValueError);
  CHECK(confusion_picture({3, 0, 1, 0}, {"a", "b"}).size(0) == 3);
  CHECK(confusion_picture(std::vector<std::int64_t>(90000, 1), std::vector<std::string>(300, "x")).size(1) > 600);
  // Of more classes than pixels neighbours share one, and keep the diagonal.
  std::vector<std::int64_t> counts(std::size_t{5000} * 5000);
  for (std::size_t k = 0; k < 5000; ++k) counts[k * 5001] = 1;
  const Tensor many = confusion_picture(counts, std::vector<std::string>(5000, "x"));
  CHECK(many.size(1) < 2600);
  const std::uint8_t* red = many.data<std::uint8_t>();
  const std::int64_t top = many.size(1) - 8 - 2500, left = many.size(2) - 8 - 2500;
  for (std::int64_t k : {0, 1000, 2499}) CHECK(red[(top + k) * many.size(2) + left + k] == 0);
  CHECK(red[(top + 7) * many.size(2) + left + 9] == 255);
}

#include "data/lra.h"

#include <algorithm>

#include "data/cifar.h"
#include "data/file_tree.h"
#include "data/grey_pixels.h"
#include "data/image_folder.h"
#include "data/imdb.h"
#include "data/listops.h"
#include "data/pathfinder.h"
#include "data/split.h"
#include "data/text_pairs.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

namespace {

using Part = std::shared_ptr<const Dataset>;

constexpr double kHeldOut = 0.1;  // of the training samples, where a task has no validation part of its own

struct Opener {
  const DataOptions& options;
  const LraTask& task;
  std::int64_t length;      // the model's
  std::int64_t kept;        // at most so many tokens of a text
  const std::string& only;  // "train", "val", "test", or "" for all

  bool wants(const char* part) const { return only.empty() || only == part; }

  Split split(const Dataset& base, const std::vector<std::int64_t>& positions, std::uint64_t seed) const {
    return hold_out(base, positions, options.val_fraction < 0 ? kHeldOut : options.val_fraction, seed,
                    options.stratify);
  }
  Part take(const Part& base, std::vector<std::int64_t> positions, std::int64_t limit) const {
    return part_of(base, std::move(positions), limit, options.split_seed);
  }
  Part whole(const Part& base, std::int64_t limit) const { return take(base, all_positions(base->size()), limit); }
  // train and val of one data set that holds both.
  void train_and_val(const Part& base, DataParts& parts) const {
    Split chosen = split(*base, all_positions(base->size()), options.split_seed);
    if (wants("train")) parts.train = take(base, std::move(chosen.train), options.limit_train);
    if (wants("val")) parts.val = take(base, std::move(chosen.val), options.limit_val);
  }

  // The first of these files of the root that exists.
  std::string file(const std::vector<std::string>& names) const {
    std::string tried;
    for (const std::string& name : names) {
      if (is_file(options.root + "/" + name)) return options.root + "/" + name;
      tried += (tried.empty() ? "" : " or ") + name;
    }
    throw DataError(format("[data] {}: {} has no {}; {}", task.data_name(), options.root, tried, task.hint));
  }

  void listops(DataParts& parts) const {
    const auto open = [&](const std::vector<std::string>& names) {
      return std::make_shared<ListOpsDataset>(file(names), kept);
    };
    const auto read = [&](const std::vector<std::string>& names, std::int64_t limit) {
      return whole(open(names), limit);
    };
    const bool original = !is_file(options.root + "/basic_train.tsv") && !is_file(options.root + "/basic_val.tsv");
    if (original && (wants("train") || wants("val"))) {  // as first published: train and test
      train_and_val(open({"basic_train.tsv", "train_d20s.tsv"}), parts);
    } else {
      if (wants("train")) parts.train = read({"basic_train.tsv", "train_d20s.tsv"}, options.limit_train);
      if (wants("val")) parts.val = read({"basic_val.tsv"}, options.limit_val);
    }
    if (wants("test")) parts.test = read({"basic_test.tsv", "test_d20s.tsv"}, options.limit_val);
  }
  void text(DataParts& parts) const {
    const bool val_is_test = options.dev == "test";
    if (wants("test") || (val_is_test && wants("val"))) {
      parts.test = whole(std::make_shared<ImdbDataset>(options.root, "test", kept), options.limit_val);
    }
    if (val_is_test && wants("val")) parts.val = parts.test;
    if (!wants("train") && (val_is_test || !wants("val"))) return;
    const Part base = std::make_shared<ImdbDataset>(options.root, "train", kept);
    if (!val_is_test) return train_and_val(base, parts);
    parts.train = whole(base, options.limit_train);
  }
  void retrieval(DataParts& parts) const {
    const auto read = [&](const char* name, std::int64_t limit) {
      return whole(std::make_shared<TextPairs>(file({name}), kept), limit);
    };
    if (wants("train")) parts.train = read("new_aan_pairs.train.tsv", options.limit_train);
    if (wants("val")) parts.val = read("new_aan_pairs.eval.tsv", options.limit_val);
    if (wants("test")) parts.test = read("new_aan_pairs.test.tsv", options.limit_val);
  }
  void image(DataParts& parts) const {
    if (has_cifar10(options.root)) {
      CifarParts files = open_cifar10(options.root, false, only.empty() || only == "test" ? only : "train");
      parts.notes = std::move(files.notes);
      if (files.test) parts.test = whole(std::make_shared<GreyTokens>(files.test), options.limit_val);
      if (files.train) train_and_val(std::make_shared<GreyTokens>(files.train), parts);
      return;
    }
    const std::string root = find_image_root(options.root, "cifar-10-images");
    const ImageFolderOptions how = {
        .name = task.data_name(), .decode = {.exif = options.exif}, .class_map = options.class_map};
    ImageParts files;
    if (!only.empty() && is_folder(root + "/" + only)) {
      std::string found;
      auto& part = only == "train" ? files.train : only == "val" ? files.val : files.test;
      part = open_image_part(root, only, how, found, files.notes);
    } else {
      files = open_image_folder(root, how);
    }
    parts.notes = std::move(files.notes.lines);
    parts.hidden = files.notes.hidden;
    parts.foreign = std::move(files.notes.foreign);
    if (files.test && wants("test")) parts.test = whole(std::make_shared<GreyTokens>(files.test), options.limit_val);
    if (files.val && wants("val")) parts.val = whole(std::make_shared<GreyTokens>(files.val), options.limit_val);
    if (!files.train || only == "test") return;
    const Part train = std::make_shared<GreyTokens>(files.train);
    if (!files.val) return train_and_val(train, parts);
    if (wants("train")) parts.train = whole(train, options.limit_train);
  }
  void pathfinder(DataParts& parts) const {
    const auto base = std::make_shared<PathfinderDataset>(options.root, options.level);
    constexpr std::uint64_t kTestPurpose = 0x74657374;  // which tenth is the test part does not follow from val's
    const Split outer = split(*base, all_positions(base->size()), derive_seed(options.split_seed, kTestPurpose));
    Split inner = split(*base, outer.train, options.split_seed);
    if (wants("train")) parts.train = take(base, std::move(inner.train), options.limit_train);
    if (wants("val")) parts.val = take(base, std::move(inner.val), options.limit_val);
    if (wants("test")) parts.test = take(base, outer.val, options.limit_val);
    parts.report = format("level  {} ({})\n", options.level, base->folder());
    for (const std::string& what : base->left_out()) parts.report += format("left out: {}\n", what);
  }
};

}  // namespace

const std::vector<LraTask>& lra_tasks() {
  static const std::vector<LraTask> tasks = {
      {"listops", 2048, 1, "listops",
       "generate it with: lra_train --task listops --generate DIR --count 100000, and name it with --data DIR"},
      {"text", 4096, 1, "bytes",
       "unpack the Large Movie Review Dataset (aclImdb_v1) and name its folder with --data DIR"},
      {"retrieval", 4096, 2, "bytes",
       "the AAN pairs can't be passed on: name a folder with new_aan_pairs.{train,eval,test}.tsv with --data DIR, or "
       "make up a small set with: lra_train --task retrieval --generate DIR"},
      {"image", 1024, 1, kGreyVocabulary, "unpack CIFAR-10's binary version and name its folder with --data DIR"},
      {"pathfinder", 1024, 1, kGreyVocabulary,
       "generate it with: lra_train --task pathfinder --generate DIR --count 200000, and name it with --data DIR"},
  };
  return tasks;
}

const LraTask* find_lra_task(const std::string& name) {
  for (const LraTask& task : lra_tasks()) {
    if (name == task.name || name == task.data_name()) return &task;
  }
  return nullptr;
}

DataParts open_lra(const DataOptions& options, const std::string& only) {
  const LraTask* task = find_lra_task(options.name);
  if (task == nullptr) throw ConfigError(format("[data] no task of the Long Range Arena is called {}", options.name));
  if (options.root.empty()) throw DataError(format("[data] {}: no folder of data; {}", options.name, task->hint));
  if (!is_folder(options.root)) {
    throw DataError(format("[data] {}: there is no folder {}; {}", options.name, options.root, task->hint));
  }
  const bool pictures = task->vocabulary == kGreyVocabulary;
  if (pictures && options.text_length >= 0 && options.text_length != kLraPixels) {
    throw ConfigError(format("[data] data.text_length {}: {} has {} pixels, all of them tokens; leave it out",
                             options.text_length, options.name, kLraPixels));
  }
  const std::int64_t length = options.text_length < 0 ? task->length : options.text_length;
  // 1000 of each 1024 positions: 4000 of 4096, as the files of the reference have it.
  const Opener opener{options, *task, length, options.text_margin ? length * 1000 / 1024 : length, only};
  DataParts parts;
  if (task->name == "listops") opener.listops(parts);
  if (task->name == "text") opener.text(parts);
  if (task->name == "retrieval") opener.retrieval(parts);
  if (task->name == "image") opener.image(parts);
  if (task->name == "pathfinder") opener.pathfinder(parts);
  for (const Part& part : {parts.train, parts.val, parts.test}) {
    if (part) parts.class_names = part->class_names();
  }
  parts.towers = task->towers;
  parts.length = length;
  parts.vocabulary = task->vocabulary;
  const std::pair<const char*, const Part&> named[] = {
      {"train", parts.train}, {"val", parts.val}, {"test", parts.test}};
  for (const auto& [name, part] : named) {
    if (part) parts.report += describe_tokens(*part, name) + "\n";
  }
  return parts;
}

}  // namespace polygrad

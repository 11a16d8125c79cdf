#include "apps/training/checkpoint.h"

#include <map>

#include "apps/training/json_text.h"
#include "data/dataset.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"
#include "engine/safetensors.h"
#include "engine/version.h"
#include "models/weights.h"

namespace polygrad {

namespace {

constexpr std::int64_t kFormat = 1;
constexpr const char* kOptimizer = "optimizer.";
constexpr const char* kEma = "ema.";
constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kStateFile = "state.safetensors";
constexpr std::size_t kMaxStateBytes = std::size_t{1} << 28;

// What a file of tensors holds, in few characters: state.json keeps it, so that a damaged file, or one of another step
// or run, is told from its own.
std::string file_hash(const std::string& path) {
  std::uint64_t hash = 0;
  for_each_piece(path, [&](std::string_view piece) { hash = content_hash(piece.data(), piece.size(), hash); });
  return hex(hash);
}

// The hash of all that stands before it in state.json, as its last key.
constexpr const char* kSeal = ",\n  \"hash\": \"";
std::string seal(std::string_view text) { return kSeal + hex(content_hash(text.data(), text.size())) + "\"\n}\n"; }

JsonValue numbers(const std::vector<double>& values) {
  std::vector<JsonValue> items;
  for (const double value : values) items.push_back(JsonValue::real(value));
  return JsonValue::list(std::move(items));
}

JsonValue texts(const std::vector<std::string>& values) {
  std::vector<JsonValue> items;
  for (const std::string& value : values) items.push_back(JsonValue::text(value));
  return JsonValue::list(std::move(items));
}

// `folder` holds the files of tensors.
std::string state_text(const CheckpointInfo& info, const std::string& folder) {
  const TrainingState& state = info.state;
  JsonValue since = JsonValue::object();
  since.set("loss_sum", JsonValue::real(state.since_row.loss_sum));
  since.set("steps", JsonValue::integer(state.since_row.steps));
  since.set("correct", JsonValue::integer(state.since_row.correct));
  since.set("counted", JsonValue::integer(state.since_row.counted));
  JsonValue preprocessing = JsonValue::object();
  preprocessing.set("channels", JsonValue::integer(info.preprocessing.channels));
  preprocessing.set("height", JsonValue::integer(info.preprocessing.height));
  preprocessing.set("width", JsonValue::integer(info.preprocessing.width));
  preprocessing.set("mean", numbers(info.preprocessing.mean));
  preprocessing.set("std", numbers(info.preprocessing.stddev));
  preprocessing.set("resize", JsonValue::integer(info.preprocessing.resize));
  preprocessing.set("filter", JsonValue::text(info.preprocessing.filter));
  preprocessing.set("exif", JsonValue::boolean(info.preprocessing.exif));
  if (info.preprocessing.of_tokens()) {
    preprocessing.set("towers", JsonValue::integer(info.preprocessing.towers));
    preprocessing.set("length", JsonValue::integer(info.preprocessing.length));
    preprocessing.set("vocabulary", JsonValue::text(info.preprocessing.vocabulary));
  }
  JsonValue root = JsonValue::object();
  root.set("format", JsonValue::integer(kFormat));
  root.set("polygrad", JsonValue::text(version()));
  root.set("name", JsonValue::text(info.config.name()));
  root.set("step", JsonValue::integer(state.step));
  root.set("epoch", JsonValue::integer(state.position.epoch));
  root.set("batch", JsonValue::integer(state.position.batch));
  root.set("batches_per_epoch", JsonValue::integer(state.batches_per_epoch));
  root.set("ema_updates", JsonValue::integer(state.ema_updates));
  root.set("best_top1", state.best_top1 ? JsonValue::real(*state.best_top1) : JsonValue());
  root.set("best_step", JsonValue::integer(state.best_step));
  if (state.pending != Pending::none) root.set("pending", JsonValue::text(to_string(state.pending)));
  root.set("since_row", std::move(since));
  if (info.config.text("train.precision") == "f16") {
    JsonValue scale = JsonValue::object();
    scale.set("scale", JsonValue::real(state.loss_scale.scale));
    scale.set("good_steps", JsonValue::integer(state.loss_scale.good_steps));
    root.set("loss_scale", std::move(scale));
  }
  JsonValue skipped = JsonValue::object();
  skipped.set("total", JsonValue::integer(state.skipped.total));
  skipped.set("in_a_row", JsonValue::integer(state.skipped.in_a_row));
  root.set("skipped_steps", std::move(skipped));
  root.set("seconds", JsonValue::real(state.seconds));
  root.set("data", JsonValue::text(info.data_fingerprint));
  root.set("preprocessing", std::move(preprocessing));
  root.set("classes", texts(info.class_names));
  root.set("config", info.config.as_json());
  JsonValue files = JsonValue::object();
  for (const char* file : {kWeightsFile, kStateFile})
    files.set(file, JsonValue::text(file_hash(format("{}/{}", folder, file))));
  root.set("files", std::move(files));
  std::string text = root.dump_pretty();
  text.resize(text.rfind("\n}"));
  return text + seal(text);
}

const JsonValue& member(const JsonValue& object, const char* key, const std::string& path) {
  const JsonValue* found = object.find(key);
  if (!found) throw IoError(format("[checkpoint] {}: no \"{}\"; the file is damaged", path, key));
  return *found;
}

Pending parse_pending(const std::string& word) {
  for (const Pending pending : {Pending::evaluation, Pending::probe}) {
    if (to_string(pending) == word) return pending;
  }
  throw ValueError(format("pending: unknown word {}", word));
}

// data.dev was a boolean without meaning before there were tasks of the Long Range Arena.
Config parse_config(JsonValue document, const std::string& name) {
  for (auto& [section, keys] : document.members()) {
    const JsonValue* dev = section == "data" ? keys.find("dev") : nullptr;
    if (dev != nullptr && dev->kind() == JsonValue::Kind::boolean) keys.set("dev", JsonValue::text("holdout"));
  }
  return Config::from_text(document.dump(), name);
}

// Format 1 is the first and so far the only one.
void check_format(const JsonValue& root, const std::string& path) {
  const std::int64_t found = member(root, "format", path).as_int();
  if (found == kFormat) return;
  const JsonValue* writer = root.find("polygrad");
  throw IoError(format("[checkpoint] {}: format {}, {}; this is polygrad {}, which reads format {}", path, found,
                       found > kFormat ? format("made by a newer polygrad ({})", writer ? writer->as_text() : "?")
                                       : std::string("which no polygrad ever wrote: the file is damaged"),
                       version(), kFormat));
}

// Throws IoError where state.json is not as it was written. The first files of this format had no seal.
void check_seal(std::string_view text, const std::string& path) {
  const std::size_t at = text.rfind(kSeal);
  if (at != std::string_view::npos && text.substr(at) != seal(text.substr(0, at)))
    throw IoError(format("[checkpoint] {} is damaged: its hash is that of another content", path));
}

CheckpointInfo parse_state(const JsonValue& root, const std::string& path) {
  CheckpointInfo info;
  info.config = parse_config(member(root, "config", path), member(root, "name", path).as_text());
  for (const JsonValue& name : member(root, "classes", path).items()) info.class_names.push_back(name.as_text());
  const JsonValue& preprocessing = member(root, "preprocessing", path);
  info.preprocessing.channels = member(preprocessing, "channels", path).as_int();
  info.preprocessing.height = member(preprocessing, "height", path).as_int();
  info.preprocessing.width = member(preprocessing, "width", path).as_int();
  for (const JsonValue& value : member(preprocessing, "mean", path).items())
    info.preprocessing.mean.push_back(value.as_double());
  for (const JsonValue& value : member(preprocessing, "std", path).items())
    info.preprocessing.stddev.push_back(value.as_double());
  // Not in the first files of this format.
  if (const JsonValue* value = preprocessing.find("resize")) info.preprocessing.resize = value->as_int();
  if (const JsonValue* value = preprocessing.find("filter")) info.preprocessing.filter = value->as_text();
  if (const JsonValue* value = preprocessing.find("exif")) info.preprocessing.exif = value->as_bool();
  if (const JsonValue* value = root.find("batches_per_epoch")) info.state.batches_per_epoch = value->as_int();
  if (const JsonValue* towers = preprocessing.find("towers")) {
    info.preprocessing.towers = towers->as_int();
    info.preprocessing.length = member(preprocessing, "length", path).as_int();
    info.preprocessing.vocabulary = member(preprocessing, "vocabulary", path).as_text();
  }
  info.data_fingerprint = member(root, "data", path).as_text();
  TrainingState& state = info.state;
  state.step = member(root, "step", path).as_int();
  state.position.epoch = member(root, "epoch", path).as_int();
  state.position.batch = member(root, "batch", path).as_int();
  state.ema_updates = member(root, "ema_updates", path).as_int();
  const JsonValue& best = member(root, "best_top1", path);
  if (!best.is_null()) state.best_top1 = best.as_double();
  state.best_step = member(root, "best_step", path).as_int();
  if (const JsonValue* pending = root.find("pending")) state.pending = parse_pending(pending->as_text());
  const JsonValue& since = member(root, "since_row", path);
  state.since_row.loss_sum = member(since, "loss_sum", path).as_double();
  state.since_row.steps = member(since, "steps", path).as_int();
  state.since_row.correct = member(since, "correct", path).as_int();
  state.since_row.counted = member(since, "counted", path).as_int();
  if (const JsonValue* scale = root.find("loss_scale")) {  // of f16 alone
    state.loss_scale = {.scale = member(*scale, "scale", path).as_double(),
                        .good_steps = member(*scale, "good_steps", path).as_int()};
  }
  if (const JsonValue* skipped = root.find("skipped_steps")) {  // not in the first files of this format
    state.skipped = {.total = member(*skipped, "total", path).as_int(),
                     .in_a_row = member(*skipped, "in_a_row", path).as_int()};
  }
  state.seconds = member(root, "seconds", path).as_double();
  return info;
}

// The tensors whose names begin with `prefix`, without it.
NamedTensors with_prefix(const NamedTensors& tensors, const std::string& prefix) {
  NamedTensors result;
  for (const auto& [name, tensor] : tensors) {
    if (name.rfind(prefix, 0) == 0) result.emplace_back(name.substr(prefix.size()), tensor);
  }
  return result;
}

void add_with_prefix(NamedTensors& to, const NamedTensors& from, const std::string& prefix) {
  for (const auto& [name, tensor] : from) to.emplace_back(prefix + name, tensor);
}

// state.json as JSON, found to be whole and of this format. ConfigError and ValueError: it is neither.
JsonValue read_state(const std::string& path) {
  const std::string text = read_file(path, kMaxStateBytes);
  JsonValue root = parse_json(text, path);
  check_format(root, path);
  check_seal(text, path);
  return root;
}

template <class Read>
auto reading_state(const std::string& path, Read read) {
  try {
    return read(read_state(path));
  } catch (const ConfigError& error) {  // not JSON, or a configuration this version does not know
    throw IoError(format("[checkpoint] {} is damaged, or of another version: {}", path, error.what()));
  } catch (const ValueError& error) {
    throw IoError(format("[checkpoint] {} is damaged: {}", path, error.what()));
  }
}

// Throws IoError where one of its files is not the one that was saved with the others.
void check_files(const std::string& checkpoint, std::initializer_list<const char*> names) {
  const std::string path = checkpoint + "/state.json";
  reading_state(path, [&](const JsonValue& root) {
    const JsonValue* files = root.find("files");
    if (files == nullptr) return;  // not in the first files of this format
    for (const char* name : names) {
      if (file_hash(format("{}/{}", checkpoint, name)) == member(*files, name, path).as_text()) continue;
      throw IoError(
          format("[checkpoint] {}/{} is damaged, or of another checkpoint: state.json tells of another content; "
                 "--resume can go on from an older checkpoint",
                 checkpoint, name));
    }
  });
}

void check_finite(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (is_floating(tensor.dtype()) && !all_finite(tensor))
      throw NumericError(format("[checkpoint] {} has a NaN or infinity; nothing was saved", name));
  }
}

}  // namespace

std::string to_string(Pending pending) {
  return pending == Pending::evaluation ? "evaluation" : pending == Pending::probe ? "probe" : "none";
}

void save_checkpoint(RunFolder& folder, const CheckpointInfo& info, const Model& model, const Optimizer& optimizer,
                     const Ema* ema) {
  const NamedTensors weights = model.state();
  NamedTensors state;
  add_with_prefix(state, optimizer.export_state(), kOptimizer);
  if (ema) add_with_prefix(state, ema->export_state(), kEma);
  check_finite(weights);
  check_finite(state);
  const std::string target = folder.begin_checkpoint(info.state.step);
  try {
    std::map<std::string, std::string> metadata = grid_metadata(model.position_tables());
    metadata.emplace("format", "pt");
    save_safetensors(target + "/model.safetensors", weights, metadata);
    save_safetensors(target + "/state.safetensors", state);
    write_file_atomically(target + "/state.json", state_text(info, target));
    folder.finish_checkpoint(info.state.step);
  } catch (...) {
    folder.abandon_checkpoint(info.state.step);
    throw;
  }
}

CheckpointInfo read_checkpoint_info(const std::string& checkpoint) {
  const std::string path = checkpoint + "/state.json";
  CheckpointInfo info = reading_state(path, [&](const JsonValue& root) { return parse_state(root, path); });
  const std::int64_t named = checkpoint_step(checkpoint);
  if (named >= 0 && named != info.state.step) {
    throw IoError(format("[checkpoint] {} is of step {}, as its folder is not: files were moved or the folder renamed",
                         path, info.state.step));
  }
  return info;
}

void check_weights(const std::string& checkpoint) { check_files(checkpoint, {kWeightsFile}); }

void load_checkpoint_weights(const std::string& checkpoint, const std::string& weights, Module& model) {
  check_files(checkpoint, {weights == "raw" ? kWeightsFile : kStateFile});
  if (weights == "raw") {
    load_weights(model, checkpoint + "/model.safetensors");
    return;
  }
  const std::string path = checkpoint + "/state.safetensors";
  const NamedTensors average = with_prefix(load_safetensors(path), kEma);
  if (average.empty()) {
    throw ConfigError(
        format("[checkpoint] {} holds no averaged weights (train.ema_decay was 0); expected eval.weights=raw", path));
  }
  load_state(model, average, {}, path);
}

void load_checkpoint(const std::string& checkpoint, const CheckpointInfo& info, Module& model, Optimizer& optimizer,
                     Ema* ema) {
  check_files(checkpoint, {kWeightsFile, kStateFile});
  const NamedTensors state = load_safetensors(checkpoint + "/state.safetensors");
  const NamedTensors average = with_prefix(state, kEma);
  if (average.empty() == (ema != nullptr)) {
    throw IoError(format("[checkpoint] {}/state.safetensors holds {} averaged weights, the run {}", checkpoint,
                         average.empty() ? "no" : "the", ema ? "needs them" : "has none"));
  }
  load_weights(model, checkpoint + "/model.safetensors");
  optimizer.import_state(with_prefix(state, kOptimizer));
  if (ema) ema->import_state(average, info.state.ema_updates);
}

}  // namespace polygrad

#include "apps/training/config_schema.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "engine/format.h"
#include "ops/attention.h"

namespace polygrad {

namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity(), kAny = std::numeric_limits<double>::infinity();
constexpr double kMaxCount = 9.2e18;

ConfigKey boolean(const char* name, const char* value, const char* help) {
  return {name, KeyType::boolean, value, "", 0, 0, 0, false, help};
}
ConfigKey integer(const char* name, const char* value, double low, const char* help) {
  return {name, KeyType::integer, value, "", low, kMaxCount, 0, false, help};
}
ConfigKey number(const char* name, const char* value, double low, double high, const char* help) {
  return {name, KeyType::number, value, "", low, high, 0, false, help};
}
ConfigKey text(const char* name, const char* value, const char* help) {
  return {name, KeyType::text, value, "", 0, 0, 0, false, help};
}
ConfigKey choice(const char* name, const char* value, const char* choices, const char* help) {
  return {name, KeyType::choice, value, choices, 0, 0, 0, false, help};
}
ConfigKey special(const char* name, KeyType type, const char* value, const char* help) {
  return {name, type, value, "", kNone, kAny, 0, false, help};
}
ConfigKey numbers(const char* name, const char* value, double low, double high, int count, const char* help) {
  return {name, KeyType::number_list, value, "", low, high, count, false, help};
}
// The same key, which may differ when a run goes on.
ConfigKey free_at_resume(ConfigKey key) {
  key.free_at_resume = true;
  return key;
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  // clang-format off
  static const std::vector<ConfigKey> keys = {
      text("model.name", "\"vit_tiny\"", "architecture and size; --list-models lists them"),
      special("model.image_size", KeyType::size, "null", "height and width of the model's input; null: the data's"),
      special("model.patch_size", KeyType::size, "null", "of a patch: a number, [h, w] or 16x32; null: the model's"),
      integer("model.in_channels", "null", 1, "1 grey, 3 RGB; null: the data's"),
      integer("model.embed_dim", "null", 1, "width of a token; null: the model's"),
      integer("model.depth", "null", 1, "number of blocks; null: the model's"),
      integer("model.num_heads", "null", 1, "attention heads of a block; they must divide embed_dim; null: the model's"),
      number("model.mlp_ratio", "null", 0, 64, "hidden width of the MLP / embed_dim; null: the model's"),
      number("model.dropout", "0", 0, 0.999, "after the position embedding and both projections"),
      number("model.drop_path", "0", 0, 0.999, "stochastic depth of the last block (0 at the first, linear between)"),
      boolean("model.class_token", "null", "a learned token in front of the patches; null: the model's"),
      choice("model.pool", "null", "token mean", "what the head reads: the class token, or the mean of the others; null: the model's"),
      boolean("model.pool_over_padding", "false", "mean pooling divides by the padded length (the LRA reference does)"),
      choice("model.swin_pad", "\"after_roll\"", "after_roll before_roll", "where Swin pads maps that windows do not divide"),
      integer("model.num_classes", "null", 1, "null: the data's"),

      special("attention.phi", KeyType::activation, "\"softmax\"", "of S in attention, or a list with one per layer"),
      special("attention.scale", KeyType::divisor, "\"auto\"", "divisor c of phi(s)/c: a number, sqrt_n, n, auto (sqrt_n for x^p, else 1); alias attention.divisor"),
      choice("attention.path", "\"auto\"", "auto tiled linear materialised", "how attention is computed"),
      number("attention.dropout", "0", 0, 0.999, "of the attention matrix"),
      choice("attention.bias_position", "\"inside\"", "inside outside", "a position bias is added inside phi, or to phi's result"),
      choice("attention.class_attention_phi", "\"softmax\"", "softmax same", "phi of class-attention layers: softmax, or the model's"),

      choice("data.name", "\"fashion_mnist\"", "fashion_mnist cifar10 cifar100 tiny_imagenet image_folder idx lra_listops lra_text lra_retrieval lra_image lra_pathfinder", "the data set; image_folder: train/CLASS/*.jpg and val/CLASS/*.jpg, or CLASS/*.jpg; idx: any folder with MNIST's four files"),
      free_at_resume(text("data.root", "\"\"", "its folder; empty: where its package puts it (--data DIR sets it)")),
      free_at_resume(integer("data.workers", "0", 0, "threads that prepare batches; 0: the training thread does")),
      number("data.val_fraction", "null", 0, 0.999, "share of the training samples held out for choosing the best checkpoint; null: 1/12, LRA 1/10"),
      integer("data.limit_train", "null", 1, "at most so many training samples, chosen by split_seed; null: all"),
      integer("data.limit_val", "null", 1, "at most so many samples of val, and of test; null: all"),
      special("data.split_seed", KeyType::seed, "0", "chooses the held-out and the limited samples"),
      boolean("data.stratify", "true", "the held-out samples have each class's share"),
      choice("data.on_bad_image", "\"stop\"", "stop skip", "what a picture that can't be decoded does; skip: another takes its place in training, evaluation leaves it out, both say so"),
      boolean("data.exif", "false", "turn photographs as their EXIF tag says"),
      text("data.class_map", "\"\"", "a file with a class name a line, in the order of their numbers; empty: natural order of the folders' names"),
      choice("data.cifar100_labels", "\"fine\"", "fine coarse", "which of CIFAR-100's two labels"),
      number("data.crop_ratio", "null", 0.05, 1, "of evaluation: the shorter side is resized to size / ratio, then the middle is cut out; null: 0.875 for image_folder, else 1"),
      numbers("data.mean", "null", kNone, kAny, 0, "of the pixels in [0, 1], for normalisation, one per channel; null: the data's, ImageNet's for photographs"),
      numbers("data.stddev", "null", 1e-6, kAny, 0, "likewise their standard deviation"),
      integer("data.text_length", "null", 1, "LRA: the most tokens of a sequence; null: the task's"),
      boolean("data.text_margin", "false", "LRA: a text fills 1000 of each 1024 tokens of text_length (the reference does that)"),
      boolean("data.mask_zero_pixels", "false", "LRA: pixels of value 0 count as padding (the reference does that)"),
      choice("data.dev", "\"holdout\"", "holdout test", "LRA text: choose on held-out training reviews, or on the test set (the reference does that)"),
      choice("data.level", "\"hard\"", "hard intermediate easy", "LRA pathfinder: paths of 14, 9 or 6 dashes"),
      integer("data.bucket", "0", 0, "LRA: so many shuffled batches are sorted by length and cut anew; 0: off"),

      choice("augment.preset", "\"none\"", "none light full", "light: flip and crop_padding 4; full: resized_crop, flip, randaugment, random_erasing 0.25, mixup 0.8, cutmix 1"),
      boolean("augment.flip", "null", "mirror half of the images; null: the preset's"),
      integer("augment.crop_padding", "null", 0, "pad by so many zeros, crop at a random place; null: the preset's"),
      boolean("augment.resized_crop", "null", "a random part of the image, resized; null: the preset's"),
      numbers("augment.crop_scale", "[0.08, 1]", 0.0001, 1, 2, "smallest and largest share of the area that resized_crop takes"),
      number("augment.mixup", "null", 0, 100, "alpha of Mixup; 0: off; null: the preset's"),
      number("augment.cutmix", "null", 0, 100, "alpha of CutMix; 0: off; null: the preset's"),
      number("augment.random_erasing", "null", 0, 1, "probability of erasing a rectangle; null: the preset's"),
      boolean("augment.randaugment", "null", "two random changes of shape or colour (rand-m9-mstd0.5-inc1); null: the preset's"),
      integer("augment.repeated", "null", 1, "views of each sample in a row; an epoch then sees that part of the samples; null: 1"),

      choice("optimizer.name", "\"adamw\"", "adamw sgd", ""),
      number("optimizer.lr", "0.001", 0, kAny, "peak learning rate"),
      number("optimizer.weight_decay", "0.05", 0, kAny, "decoupled for adamw; not applied to biases, norms, tokens and position embeddings"),
      numbers("optimizer.betas", "[0.9, 0.999]", 0, 1, 2, "of adamw"),
      number("optimizer.eps", "1e-8", 0, 1, "of adamw"),
      number("optimizer.momentum", "0.9", 0, 1, "of sgd"),

      choice("schedule.name", "\"cosine\"", "cosine one_cycle step constant", ""),
      integer("schedule.steps", "null", 1, "optimizer steps that the curve spans, whatever the run's length; null: the run's, or the epochs'"),
      integer("schedule.warmup_steps", "null", 0, "optimizer steps of linear warm-up; null: warmup_epochs says"),
      number("schedule.warmup_epochs", "null", 0, kAny, "the same in epochs, fractions allowed; null: no warm-up"),
      number("schedule.warmup_lr", "1e-6", 0, kAny, "learning rate of the first warm-up step"),
      number("schedule.min_lr", "1e-5", 0, kAny, "learning rate at the end of the cosine"),
      choice("schedule.unit", "\"step\"", "step epoch", "how often the learning rate changes"),
      integer("schedule.epoch_lag", "0", 0, "with unit epoch: how many epochs the value lags behind (1: as DeiT's code)"),
      boolean("schedule.warmup_prefix", "true", "the cosine begins when the warm-up ends; false: at step 0, behind it"),
      choice("schedule.anneal", "\"linear\"", "linear cosine", "shape of one_cycle"),
      boolean("schedule.cycle_momentum", "true", "one_cycle moves beta1 between max_momentum and base_momentum"),
      number("schedule.base_momentum", "0.85", 0, 1, "of one_cycle"),
      number("schedule.max_momentum", "0.95", 0, 1, "of one_cycle"),
      number("schedule.div_factor", "25", 1, kAny, "one_cycle begins at lr / div_factor"),
      number("schedule.final_div_factor", "1e4", 1, kAny, "and ends at lr / div_factor / final_div_factor"),
      numbers("schedule.milestones", "[]", 0, kAny, 0, "step: the epochs after which lr is multiplied by gamma"),
      integer("schedule.step_size", "0", 0, "step, without milestones: every so many epochs"),
      number("schedule.gamma", "0.1", 0, 1, "of step"),

      integer("train.batch_size", "128", 1, "samples of one micro-batch"),
      integer("train.accumulate", "1", 1, "micro-batches of one optimizer step"),
      boolean("train.drop_last", "false", "leave an incomplete last batch of an epoch out"),
      number("train.epochs", "null", 0, kAny, "passes over the training samples, which the schedule spans; null: as many as max_steps takes (10 where that is null too)"),
      integer("train.max_steps", "null", 1, "stop after so many optimizer steps, on the same schedule; null: when the epochs are done"),
      number("train.clip_grad", "0", 0, kAny, "largest norm of all gradients together; 0: not clipped"),
      choice("train.on_divergence", "\"stop\"", "stop skip", "a step whose loss or gradients are not finite: the run stops (exit code 4), or the step's update is left out and counted (skipped_steps)"),
      integer("train.max_skipped", "10", 1, "with on_divergence skip: so many steps in a row may be left out; at one more the run stops"),
      number("train.label_smoothing", "0", 0, 0.999, ""),
      number("train.ema_decay", "0", 0, 0.9999999, "of an average of the weights beside them; 0: none"),
      choice("train.precision", "\"f32\"", "f32 bf16 f16", "of matrix products and what they take and give; weights, their gradients and the loss stay f32; f16: on a GPU, with a loss scale"),
      free_at_resume(choice("train.capture", "\"auto\"", "auto on off", "on a GPU: steps of one shape start as one CUDA graph, with the same results; not with accumulate or dropout (auto: where it applies)")),
      boolean("train.tf32", "false", "on a GPU: products of f32 may round their factors to 10 bits, for speed"),
      integer("train.eval_every_steps", "null", 0, "evaluate on val every so many steps; 0: at the end only; null: after each epoch"),
      integer("train.checkpoint_every_steps", "null", 0, "0: at the end only; null: after each epoch"),
      free_at_resume(integer("train.keep_last", "3", 1, "checkpoints kept, beside the best")),
      integer("train.log_every_steps", "20", 1, "steps that a train row of metrics.jsonl covers"),
      free_at_resume(boolean("train.tensorboard", "false", "write the rows as a TensorBoard event file too, in tensorboard/ of the run")),

      boolean("probe.norms", "false", "log the norms of attention and of its Jacobians, per layer and head"),
      integer("probe.every_steps", "null", 1, "null: after each epoch"),
      integer("probe.samples", "64", 1, "training samples that are probed, the same ones each time, prepared as for evaluation"),
      free_at_resume(special("probe.maps", KeyType::any_list, "[]", "attention maps to write at each probe: a list of {layer, head, reduce}; layer from 1, -1 the last; head from 1, or mean; reduce mean (over the samples), none (the first sample's) or query (over pictures)")),

      free_at_resume(choice("eval.weights", "\"raw\"", "raw ema", "which weights are evaluated")),
      free_at_resume(choice("eval.split", "null", "train val test", "of --eval; null: test where there is one, else val")),
      boolean("eval.drop_last", "false", "leave an incomplete last batch out (the LRA reference does that)"),
      boolean("eval.test_last", "false", "at the end, evaluate the last weights on the test part too, beside the best"),
      choice("generate.contrast", "\"bright\"", "bright equal", "pathfinder: distractors brighter than paths, as documented, or alike"),
      special("seed", KeyType::seed, "0", "of parameters, order, augmentation and dropout"),
      free_at_resume(text("device", "\"auto\"", "auto, cpu, cuda:0")),
      free_at_resume(integer("threads", "0", 0, "threads of the computation; 0: the machine's or the container's quota")),
  };
  // clang-format on
  return keys;
}

const ConfigKey* find_config_key(std::string_view name) {
  if (name == "attention.divisor") name = "attention.scale";
  for (const ConfigKey& key : config_keys()) {
    if (name == key.name) return &key;
  }
  return nullptr;
}

namespace {

// Lower case, dashes as underscores: what a typing mistake leaves alone is not counted.
std::string plain(std::string_view word) {
  std::string result(word);
  for (char& c : result) {
    if (c == '-') c = '_';
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

// Insertions, deletions, substitutions and swaps of neighbours that turn one word into the other.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({row[j - 1] + 1, last[j] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

// A word that shares little with the wrong one is no help: "foo.bar" is not "model.name". One slip, or one in three
// letters.
bool is_near(const std::string& wrong, const std::string& word) {
  return edit_distance(wrong, word) <= std::max<std::size_t>(1, wrong.size() / 3);
}

std::string leaf(const std::string& name) { return name.substr(name.find_last_of('.') + 1); }

// Names other programs use for the same thing.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"learning_rate", "optimizer.lr"},     {"wd", "optimizer.weight_decay"}, {"batch", "train.batch_size"},
    {"heads", "model.num_heads"},          {"activation", "attention.phi"},  {"layers", "model.depth"},
    {"img_size", "model.image_size"},      {"num_workers", "data.workers"},  {"warmup", "schedule.warmup_epochs"},
    {"smoothing", "train.label_smoothing"}};

}  // namespace

std::string nearest_config_key(std::string_view wrong) {
  const std::string word = plain(wrong);
  for (const ConfigKey& key : config_keys()) {
    if (leaf(word) == leaf(key.name)) return key.name;  // right key, wrong section or spelling
  }
  for (const auto& [other, name] : kOtherNames) {
    if (leaf(word) == other) return std::string(name);
  }
  std::vector<std::string> names;
  for (const ConfigKey& key : config_keys()) names.emplace_back(key.name);
  if (word.find('.') != std::string::npos) {
    const std::string name = nearest_word(word, names);
    return is_near(word, name) || is_near(leaf(word), leaf(name)) ? name : "";
  }
  // Without a section, the last parts are compared.
  std::vector<std::string> leaves;
  for (const std::string& name : names) leaves.push_back(leaf(name));
  const std::string best = nearest_word(word, leaves);
  if (!is_near(word, best)) return "";
  return names[static_cast<std::size_t>(std::find(leaves.begin(), leaves.end(), best) - leaves.begin())];
}

std::string nearest_word(std::string_view wrong, const std::vector<std::string>& words) {
  std::string best;
  std::size_t smallest = std::numeric_limits<std::size_t>::max();
  for (const std::string& word : words) {
    const std::size_t distance = edit_distance(plain(wrong), plain(word));
    if (distance < smallest) std::tie(smallest, best) = std::tuple(distance, word);
  }
  return best;
}

std::string expected_value(const ConfigKey& key) {
  const auto range = [&](const char* what) {
    if (key.low == kNone && key.high == kAny) return std::string(what);
    if (key.high >= kMaxCount) return format("{} >= {}", what, key.low);
    return format("{} from {} to {}", what, key.low, key.high);
  };
  std::string text;
  switch (key.type) {
    case KeyType::boolean:
      text = "true or false";
      break;
    case KeyType::integer:
      text = range("a whole number");
      break;
    case KeyType::seed:
      text = "a whole number from 0 to 18446744073709551615";
      break;
    case KeyType::number:
      text = range("a number");
      break;
    case KeyType::text:
      text = "a text";
      break;
    case KeyType::choice: {
      text = "one of ";
      for (const char* c = key.choices; *c != '\0'; ++c) text += *c == ' ' ? std::string(", ") : std::string(1, *c);
      break;
    }
    case KeyType::size:
      text = "a size: a number, [height, width] or 16x32";
      break;
    case KeyType::number_list:
      text = key.count > 0 ? format("a list of {} numbers", key.count) : "a list of numbers";
      if (key.low != kNone || key.high != kAny)
        text += key.high == kAny ? format(" >= {}", key.low) : format(" from {} to {}", key.low, key.high);
      break;
    case KeyType::activation:
      text = "one of " + activation_names() + ", or a list with one per layer";
      break;
    case KeyType::divisor:
      text = "a number > 0, sqrt_n, n or auto";
      break;
    case KeyType::any_list:
      text = "a list";
      break;
  }
  return key.optional() ? text + ", or null" : text;
}

std::string config_help() {
  std::string out = "Configuration keys (--config FILE, --set key=value): key, default, what it takes; meaning\n";
  std::string section = "-";
  for (const ConfigKey& key : config_keys()) {
    const std::string name = key.name;
    const std::size_t dot = name.find('.');
    const std::string its_section = dot == std::string::npos ? "" : name.substr(0, dot);
    if (its_section != section) {
      section = its_section;
      out += format("\n{}:\n", section.empty() ? "top level" : section);
    }
    out += format("  {:<29} {:<13} {}\n", name, key.default_value, expected_value(key));
    if (*key.help != '\0') out += format("  {:<29} {:<13}   {}\n", "", "", key.help);
  }
  return out;
}

}  // namespace polygrad

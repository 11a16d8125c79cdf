// Configurations as people mistype them, through the program: exit 2, one line with file, line, key and what is meant,
// and no folder.
#include <doctest/doctest.h>

#include "tests/cli/tiny_run.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

struct BadFile {
  std::string text;
  int line;  // that the message names; 0: none
  std::vector<std::string> says;
};

std::string nested(int depth) {
  std::string text = "{\"model\": ";
  for (int i = 0; i < depth; ++i) text += "[";
  return text;
}

// The message of a file, between "error: " and the end.
std::string refuse(const TemporaryFolder& folder, const std::string& config) {
  const Outcome outcome = train({"--config", config, "--out", folder / "run"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 2);
  CHECK(outcome.out.empty());
  CHECK_FALSE(exists(folder / "run"));
  const std::string line = outcome.error_line();
  CHECK(line + "\n" == outcome.err);  // that line alone
  return line;
}

}  // namespace

TEST_CASE("files that are no JSON: the place and what is wrong there") {
  const TemporaryFolder folder;
  const std::string file = folder / "bad.json";
  const BadFile cases[] = {
      {"", 1, {"expected a value", "end of file"}},
      {"  \n\t\n ", 3, {"expected a value", "end of file"}},
      {"\xEF\xBB\xBF", 1, {"end of file"}},
      {"{", 1, {"end of file"}},
      {"{\"model\": {\"depth\": 2}", 1, {"end of file"}},
      {"{\"model\": {\"depth\": 2}}}", 1, {"after the end"}},
      {"{\"seed\": 1} {\"seed\": 2}", 1, {"after the end"}},
      {"{\n\"seed\": 1,\n}", 3, {"trailing comma"}},
      {"{\"optimizer\": {\"betas\": [0.9, 0.95,]}}", 1, {"trailing comma", "optimizer.betas"}},
      {"{\"seed\": 1\n\"threads\": 2}", 2, {"expected ','"}},
      {"{\"seed\" 1}", 1, {"expected ':'"}},
      {"{seed: 1}", 1, {"a key in quotes"}},
      {"{'seed': 1}", 1, {"a key in quotes"}},
      {"{\n// mine\n\"seed\": 1}", 2, {"comments"}},
      {"{\"seed\": 1 # mine\n}", 1, {"comments"}},
      {"{/* mine */ \"seed\": 1}", 1, {"comments"}},
      {"{\"seed\": 1,\n \"seed\": 1}", 2, {"duplicate key", "seed"}},
      {"{\"train\": {\"epochs\": 1,\n\"epochs\": 2}}", 2, {"duplicate key", "train.epochs"}},
      {"{\"model\": {\"depth\": 2},\n\"model\": {\"embed_dim\": 8}}", 2, {"duplicate key", "model"}},
      {"{\"model\": {\"name\": \"vit_tiny}}", 1, {"closing quote", "model.name"}},
      {"{\"model\": {\"name\": \"vit_\ntiny\"}}", 1, {"closing quote", "model.name"}},
      {"{\"model\": {\"name\": \"vit\ttiny\"}}", 1, {"control character", "model.name"}},
      {std::string("{\"model\": {\"name\": \"vit\0\"}}", 26), 1, {"control character", "model.name"}},
      {std::string("{\"seed\": 1}\0", 12), 1, {"after the end", "0x00"}},
      {"{\"model\": {\"name\": \"\\x41\"}}", 1, {"escape", "model.name"}},
      {"{\"model\": {\"name\": \"\\ud800\"}}", 1, {"surrogate", "model.name"}},
      {"{\"model\": {\"name\": \"\xFF\xFE\"}}", 1, {"UTF-8", "model.name"}},
      {"\xFF\xFE{\"seed\": 1}", 1, {"0xff"}},
      {"{\"optimizer\": {\"lr\": NaN}}", 1, {"optimizer.lr"}},
      {"{\"optimizer\": {\"lr\": nan}}", 1, {"optimizer.lr"}},
      {"{\"optimizer\": {\"lr\": Infinity}}", 1, {"optimizer.lr"}},
      {"{\"optimizer\": {\"lr\": -Infinity}}", 1, {"optimizer.lr"}},
      {"{\"optimizer\": {\"lr\": 1e400}}", 1, {"out of range", "optimizer.lr"}},
      {"{\"optimizer\": {\"lr\": 22e2222}}", 1, {"out of range", "optimizer.lr"}},
      {"{\"optimizer\": {\"lr\": .5}}", 1, {"optimizer.lr"}},
      {"{\"optimizer\": {\"lr\": 5.}}", 1, {"digits", "optimizer.lr"}},
      {"{\"optimizer\": {\"lr\": +1}}", 1, {"optimizer.lr"}},
      {"{\"optimizer\": {\"lr\": 0x1}}", 1, {"expected ','", "'x'"}},
      {"{\"optimizer\": {\"lr\": 1,5}}", 1, {"a key in quotes"}},
      {"{\"train\": {\"epochs\": 007}}", 1, {"begin with 0", "train.epochs"}},
      {"{\"seed\": 18446744073709551616}", 1, {"out of range", "seed"}},
      {"{\"probe\": {\"norms\": True}}", 1, {"probe.norms"}},
      {"{\"probe\": {\"norms\": yes}}", 1, {"probe.norms"}},
      {nested(200), 1, {"nested deeper"}},
      {nested(1000000), 1, {"nested deeper"}},
  };
  for (const BadFile& c : cases) {
    CAPTURE(c.text.substr(0, 80));
    write_bytes(file, c.text);
    const std::string line = refuse(folder, file);
    CHECK(contains(line, file + ":" + std::to_string(c.line) + ": "));
    for (const std::string& text : c.says) CHECK(contains(line, text));
  }
}

TEST_CASE("files whose keys or values are not ours: line, key path, what is expected or meant") {
  const TemporaryFolder folder;
  const std::string file = folder / "bad.json";
  const BadFile cases[] = {
      // The document.
      {"[]", 1, {"expected an object", "a list"}},
      {"\n\n3", 3, {"expected an object", "the number 3"}},
      {"null", 1, {"expected an object", "null"}},
      {"\"fashion_mnist\"", 1, {"expected an object"}},
      // Keys.
      {"{\n\"optimizer\": {\n\"learning-rate\": 1}}", 3, {"optimizer.learning-rate", "optimizer.lr"}},
      {"{\"optimizer\": {\"learning_rate\": 1}}", 1, {"optimizer.learning_rate", "optimizer.lr"}},
      {"{\"optimizer\": {\"weigth_decay\": 1}}", 1, {"optimizer.weigth_decay", "optimizer.weight_decay"}},
      {"{\"model\": {\"Depth\": 2}}", 1, {"model.Depth", "model.depth"}},
      {"{\"model\": {\"num-heads\": 2}}", 1, {"model.num-heads", "model.num_heads"}},
      {"{\"model\": {\"lr\": 1}}", 1, {"model.lr", "optimizer.lr"}},
      {"{\"train\": {\"lr\": 1}}", 1, {"train.lr", "optimizer.lr"}},
      {"{\"optimizer\": {\"epochs\": 1}}", 1, {"optimizer.epochs", "train.epochs"}},
      {"{\"lr\": 1}", 1, {"lr", "optimizer.lr"}},
      {"{\"epochs\": 1}", 1, {"epochs", "train.epochs"}},
      {"{\"sede\": 1}", 1, {"sede", "seed"}},
      {"{\"optimizer.lr\": 1}", 1, {"optimizer.lr"}},
      {"{\"optimiser\": {\"lr\": 1}}", 1, {"optimiser.lr", "optimizer.lr"}},
      {"{\"\": 1}", 1, {"unknown key"}},
      {"{\"attention\": {\"scale\": 2,\n\"divisor\": 3}}", 2, {"attention.scale", "twice"}},
      {"{\"data\": {\"mnist\": 1}}", 1, {"data.mnist"}},
      {"{\"augment\": {\"mixupp\": 1}}", 1, {"augment.mixupp", "augment.mixup"}},
      {"{\"schedule\": {\"warmup\": 1}}", 1, {"schedule.warmup", "schedule.warmup_"}},
      {"{\"probe\": {\"norm\": true}}", 1, {"probe.norm", "probe.norms"}},
      {"{\"eval\": {\"weight\": \"ema\"}}", 1, {"eval.weight", "eval.weights"}},
      // A value where a section is, in each of them.
      {"{\"model\": \"vit_tiny\"}", 1, {"model is a section"}},
      {"{\"attention\": 3}", 1, {"attention is a section"}},
      {"{\"data\": []}", 1, {"data is a section"}},
      {"{\"augment\": true}", 1, {"augment is a section"}},
      {"{\"optimizer\": null}", 1, {"optimizer is a section"}},
      {"{\"schedule\": 1.5}", 1, {"schedule is a section"}},
      {"{\"train\": [{\"epochs\": 1}]}", 1, {"train is a section"}},
      {"{\"probe\": false}", 1, {"probe is a section"}},
      {"{\"eval\": \"raw\"}", 1, {"eval is a section"}},
      {"{\"seed\": {\"seed\": 1}}", 1, {"seed"}},
      // Values of another type.
      {"{\"optimizer\": {\"lr\": \"1e-3\"}}", 1, {"optimizer.lr", "expected a number", "\"1e-3\""}},
      {"{\"optimizer\": {\"lr\": null}}", 1, {"optimizer.lr", "null"}},
      {"{\"optimizer\": {\"lr\": [0.1]}}", 1, {"optimizer.lr", "a list"}},
      {"{\"model\": {\"depth\": \"2\"}}", 1, {"model.depth"}},
      {"{\"model\": {\"depth\": true}}", 1, {"model.depth", "true"}},
      {"{\"model\": {\"depth\": 2.5}}", 1, {"model.depth", "2.5"}},
      {"{\"model\": {\"name\": 3}}", 1, {"model.name"}},
      {"{\"model\": {\"name\": null}}", 1, {"model.name"}},
      {"{\"model\": {\"class_token\": 1}}", 1, {"model.class_token", "true or false"}},
      {"{\"probe\": {\"norms\": \"true\"}}", 1, {"probe.norms", "true or false"}},
      {"{\"data\": {\"root\": 5}}", 1, {"data.root"}},
      {"{\"device\": 0}", 1, {"device"}},
      {"{\"train\": {\"batch_size\": {}}}", 1, {"train.batch_size", "an object"}},
      // Out of range.
      {"{\"train\": {\"batch_size\": 0}}", 1, {"train.batch_size"}},
      {"{\"train\": {\"batch_size\": -4}}", 1, {"train.batch_size", "-4"}},
      {"{\"train\": {\"max_steps\": -1}}", 1, {"train.max_steps"}},
      {"{\"train\": {\"max_steps\": 1e30}}", 1, {"train.max_steps"}},
      {"{\"train\": {\"max_steps\": 18446744073709551615}}", 1, {"train.max_steps", "18446744073709551615"}},
      {"{\"data\": {\"workers\": -1}}", 1, {"data.workers"}},
      {"{\"threads\": -2}", 1, {"threads"}},
      {"{\"seed\": -1}", 1, {"seed", "-1"}},
      {"{\"seed\": 1.5}", 1, {"seed", "1.5"}},
      {"{\"seed\": 1e300}", 1, {"seed"}},
      {"{\"optimizer\": {\"lr\": -1e-3}}", 1, {"optimizer.lr", "-0.001"}},
      {"{\"model\": {\"drop_path\": 1}}", 1, {"model.drop_path"}},
      {"{\"train\": {\"ema_decay\": 1}}", 1, {"train.ema_decay"}},
      {"{\"attention\": {\"scale\": 0}}", 1, {"attention.scale"}},
      {"{\"attention\": {\"scale\": -2}}", 1, {"attention.scale"}},
      // Choices.
      {"{\"optimizer\": {\"name\": \"adam\"}}", 1, {"optimizer.name", "adamw", "sgd", "\"adam\""}},
      {"{\"schedule\": {\"name\": \"Cosine\"}}", 1, {"schedule.name", "cosine"}},
      {"{\"schedule\": {\"name\": \"\"}}", 1, {"schedule.name", "cosine"}},
      {"{\"schedule\": {\"name\": \"cosine step\"}}", 1, {"schedule.name"}},
      {"{\"attention\": {\"phi\": \"x10\"}}", 1, {"attention.phi", "softmax"}},
      {"{\"attention\": {\"phi\": [\"x3\", 4]}}", 1, {"attention.phi"}},
      {"{\"attention\": {\"phi\": []}}", 1, {"attention.phi"}},
      {"{\"attention\": {\"scale\": \"sqrt\"}}", 1, {"attention.scale", "sqrt_n"}},
      {"{\"train\": {\"precision\": \"fp16\"}}", 1, {"train.precision", "bf16"}},
      // Lists.
      {"{\"model\": {\"patch_size\": [0, 4]}}", 1, {"model.patch_size"}},
      {"{\"model\": {\"patch_size\": []}}", 1, {"model.patch_size"}},
      {"{\"model\": {\"patch_size\": [4, 4, 4]}}", 1, {"model.patch_size"}},
      {"{\"model\": {\"patch_size\": [4.5, 4]}}", 1, {"model.patch_size"}},
      {"{\"model\": {\"patch_size\": \"4*4\"}}", 1, {"model.patch_size"}},
      {"{\"model\": {\"image_size\": -8}}", 1, {"model.image_size"}},
      {"{\"optimizer\": {\"betas\": [0.9]}}", 1, {"optimizer.betas"}},
      {"{\"optimizer\": {\"betas\": [0.9, 0.99, 0.999]}}", 1, {"optimizer.betas"}},
      {"{\"optimizer\": {\"betas\": [0.9, \"0.99\"]}}", 1, {"optimizer.betas"}},
      {"{\"optimizer\": {\"betas\": [0.9, 1.1]}}", 1, {"optimizer.betas"}},
      {"{\"optimizer\": {\"betas\": 0.9}}", 1, {"optimizer.betas"}},
      {"{\"schedule\": {\"milestones\": [1, -2]}}", 1, {"schedule.milestones"}},
      {"{\"probe\": {\"maps\": \"all\"}}", 1, {"probe.maps"}},
  };
  for (const BadFile& c : cases) {
    CAPTURE(c.text);
    write_bytes(file, c.text);
    const std::string line = refuse(folder, file);
    CHECK(contains(line, file + ":" + std::to_string(c.line) + ": "));
    for (const std::string& text : c.says) CHECK(contains(line, text));
  }
  CHECK(std::size(cases) >= 30);
}

TEST_CASE("a folder or nothing where a file is expected") {
  const TemporaryFolder folder;
  for (const std::string& path :
       {folder.path(), folder / "none.json", folder / "none/none.json", std::string("/dev/null")}) {
    CHECK(contains(refuse(folder, path), path));
  }
  CHECK(contains(refuse(folder, "fashion-mnist"), "fashion_mnist"));  // a preset's name
}

TEST_CASE("--set: the assignment, the key, what it takes") {
  const TemporaryFolder folder;
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"optimizer.lr", {"expected key=value"}},
      {"=1", {"expected key=value"}},
      {"", {"key=value"}},
      {"optimizer.lr=", {"optimizer.lr"}},
      {"optimizer.lr=fast", {"optimizer.lr", "fast"}},
      {"optimizer.lr=0,001", {"optimizer.lr", "0,001"}},
      {"optimizer.lr=1e400", {"out of range"}},
      {"optimizer.lr=nan", {"optimizer.lr"}},
      {"optimizer.lr=-1", {"optimizer.lr", "-1"}},
      {"optimizer.lr=\"1e-3\"", {"optimizer.lr", "a number"}},
      {"optimizer.learning-rate=1", {"optimizer.learning-rate", "optimizer.lr"}},
      {"learning_rate=1", {"learning_rate", "optimizer.lr"}},
      {"optimizer={\"lr\":1}", {"optimizer"}},
      {"OPTIMIZER.LR=1", {"OPTIMIZER.LR", "optimizer.lr"}},
      {"train.epochs=ten", {"train.epochs", "ten"}},
      {"train.batch_size=1.5", {"train.batch_size", "1.5"}},
      {"train.batch_size=0x10", {"train.batch_size", "0x10"}},
      {"train.batch_size=8 9", {"train.batch_size"}},
      {"seed=18446744073709551616", {"out of range"}},
      {"seed=-1", {"seed"}},
      {"model.patch_size=4x", {"model.patch_size"}},
      {"model.patch_size=[4", {"model.patch_size"}},
      {"optimizer.betas=0.9,0.95,", {"optimizer.betas"}},
      {"attention.phi=x3,", {"attention.phi"}},
      {"attention.phi=x3,,x3", {"attention.phi"}},
      {"probe.norms=on", {"probe.norms", "true or false"}},
      {"model.name=null", {"model.name"}},
  };
  for (const auto& [assignment, says] : cases) {
    CAPTURE(assignment);
    const Outcome outcome = train({"--config", "fashion_mnist", "--set", assignment, "--out", folder / "run"});
    CHECK(outcome.code == 2);
    CHECK(outcome.error_line() + "\n" == outcome.err);
    for (const std::string& text : says) CHECK(contains(outcome.err, text));
    CHECK_FALSE(exists(folder / "run"));
  }
}

TEST_CASE("what looks odd and is right: a byte order mark, CRLF, whole reals, minus zero, integers of 64 bits") {
  const TemporaryFolder folder;
  const Arguments arguments = tiny_run(folder, "run", {"train.max_steps=1"});
  std::string text = "\xEF\xBB\xBF" + read_bytes(folder / "tiny.json");
  text.replace(text.find("\"threads\": 1"), 12,
               "\"threads\": 1e0, \"seed\": 18446744073709551615, \"optimizer\": {\"weight_decay\": -0},\r\n"
               "\"schedule\": {\"steps\": 9007199254740993}");
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2) {
    if (text[at - 1] != '\r') text.insert(at, "\r");
  }
  write_bytes(folder / "tiny.json", text);
  const Outcome outcome = train(arguments);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  const std::string effective = read_bytes(folder / "run/config.json");
  CHECK(contains(effective, "\"seed\": 18446744073709551615"));
  CHECK(contains(effective, "\"steps\": 9007199254740993"));
  CHECK(contains(read_bytes(folder / "run/metrics.jsonl"), "\"seed\":18446744073709551615"));
  CHECK(contains(read_bytes(folder / "run/checkpoints/latest/state.json"), "\"seed\": 18446744073709551615"));
  // The effective configuration is one too.
  CHECK(train({"--config", folder / "run/config.json", "--dry-run"}).code == 0);
}

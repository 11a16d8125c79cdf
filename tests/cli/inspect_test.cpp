// inspect as its users meet it: files, comparisons, fresh models, exit codes.
#include <doctest/doctest.h>

#include <cmath>

#include "engine/factory.h"
#include "engine/safetensors.h"
#include "tests/cli/program.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

using Arguments = std::vector<std::string>;

// A model that is quick to make.
Arguments tiny(const Arguments& more = {}) {
  Arguments arguments = {
      "--model", "vit_tiny",          "--set", "model.image_size=16", "--set", "model.patch_size=8x16",
      "--set",   "model.embed_dim=6", "--set", "model.depth=1",       "--set", "model.num_classes=4"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

void check_fails(const Arguments& arguments, int code, const std::string& text) {
  const Outcome outcome = run_program("inspect", arguments);
  CHECK(outcome.code == code);
  CHECK_MESSAGE(outcome.error_line().find(text) != std::string::npos, outcome.err);
}

}  // namespace

TEST_CASE("a fresh model as lines of name, sizes and kind") {
  const Outcome outcome = run_program("inspect", tiny({"--tsv"}));
  CHECK(outcome.code == 0);
  CHECK(outcome.err == "");
  CHECK(outcome.out ==
        "cls_token\t1x1x6\tparam\n"
        "pos_embed\t1x3x6\tparam\n"
        "patch_embed.proj.weight\t6x3x8x16\tparam\n"
        "patch_embed.proj.bias\t6\tparam\n"
        "blocks.0.norm1.weight\t6\tparam\n"
        "blocks.0.norm1.bias\t6\tparam\n"
        "blocks.0.attn.qkv.weight\t18x6\tparam\n"
        "blocks.0.attn.qkv.bias\t18\tparam\n"
        "blocks.0.attn.proj.weight\t6x6\tparam\n"
        "blocks.0.attn.proj.bias\t6\tparam\n"
        "blocks.0.norm2.weight\t6\tparam\n"
        "blocks.0.norm2.bias\t6\tparam\n"
        "blocks.0.mlp.fc1.weight\t24x6\tparam\n"
        "blocks.0.mlp.fc1.bias\t24\tparam\n"
        "blocks.0.mlp.fc2.weight\t6x24\tparam\n"
        "blocks.0.mlp.fc2.bias\t6\tparam\n"
        "norm.weight\t6\tparam\n"
        "norm.bias\t6\tparam\n"
        "head.weight\t4x6\tparam\n"
        "head.bias\t4\tparam\n");
}

TEST_CASE("a fresh model described, saved, and compared") {
  const TemporaryFolder folder;
  const std::string a = folder / "a.safetensors", b = folder / "b.safetensors", c = folder / "c.safetensors";
  const Outcome described = run_program("inspect", tiny({"--set", "attention.phi=x3", "--set", "attention.scale=n"}));
  CHECK(described.code == 0);
  CHECK(described.out.find("attention layers 1") == std::string::npos);
  CHECK(described.out.find("attention layer 1: 3 heads of 2, 3 tokens, phi x3, divisor 2, path ") != std::string::npos);
  CHECK(described.last_line().find("parameters in 20 tensors, seed 0, sha256 ") != std::string::npos);
  CHECK(run_program("inspect", tiny({"--save", a, "--set", "seed=1"})).code == 0);
  CHECK(run_program("inspect", tiny({"--save", b, "--set", "seed=1", "--threads", "3", "--tsv"})).code == 0);
  CHECK(run_program("inspect", tiny({"--save", c, "--set", "seed=2"})).code == 0);
  CHECK(read_bytes(a) == read_bytes(b));
  const Outcome equal = run_program("inspect", {a, "--compare", b});
  CHECK(equal.code == 0);
  CHECK(equal.out == "equal: 20 tensors, every bit\n");
  const Outcome different = run_program("inspect", {a, "--compare", c});
  CHECK(different.code == 1);
  CHECK(different.error_line().find("differ") != std::string::npos);
  CHECK(different.out.find("head.weight: 24 of 24 elements differ, by up to ") != std::string::npos);
  CHECK(different.out.find("norm.weight") == std::string::npos);
}

TEST_CASE("what differs between two files is named, whatever it is") {
  const TemporaryFolder folder;
  const std::string a = folder / "a.safetensors", b = folder / "b.safetensors";
  save_safetensors(a, {{"same", ones({2})},
                       {"nan", full({2}, NAN)},
                       {"gone", ones({2})},
                       {"shape", ones({2})},
                       {"dtype", ones({2})},
                       {"zero", full({1}, 0.0)}});
  save_safetensors(b, {{"zero", full({1}, -0.0)},
                       {"dtype", ones({2}).to(DType::f64)},
                       {"shape", ones({3})},
                       {"new", ones({2})},
                       {"nan", full({2}, NAN)},
                       {"same", ones({2})}});
  const Outcome outcome = run_program("inspect", {a, "--compare", b});
  CHECK(outcome.code == 1);
  CHECK(outcome.out == "gone: only in " + a + "\nshape: F32 (2) against F32 (3)\ndtype: F32 (2) against F64 (2)\n" +
                           "zero: the values are equal, the bits are not (signed zeros or NaNs)\nnew: only in " + b +
                           "\n");
}

TEST_CASE("a file's tensors, with statistics") {
  const TemporaryFolder folder;
  const std::string path = folder / "model.safetensors";
  save_safetensors(path, {{"w", Tensor::from_vector<float>({1, 3, INFINITY}, {3})}}, {{"format", "pt"}});
  const Outcome outcome = run_program("inspect", {folder.path(), "--stats"});  // a folder with a model in it
  CHECK(outcome.code == 0);
  CHECK(outcome.out.find("w     F32   (3)  min 1  max 3  mean 2  std 1  not finite: 1\n") != std::string::npos);
  CHECK(outcome.out.find("metadata format: pt\n") != std::string::npos);
  CHECK(outcome.last_line() == path + ": 1 tensors, 3 elements");
}

TEST_CASE("exit codes of inspect") {
  const TemporaryFolder folder;
  const std::string damaged = folder / "damaged.safetensors";
  write_bytes(damaged, "not a header");
  check_fails({}, 2, "expected either a file or --model NAME");
  check_fails({damaged, "--model", "vit_tiny"}, 2, "expected either a file or --model NAME");
  check_fails({damaged, "--tsv"}, 2, "they go with --model");
  check_fails({"--bogus"}, 2, "--bogus");
  check_fails({"--model", "vit_huge"}, 2, "unknown model 'vit_huge'; expected one of vit_tiny");
  check_fails({"--model", "vit_tiny", "--set", "model.num_heads=5"}, 2, "embed_dim 192, num_heads 5");
  check_fails({"--model", "vit_tiny", "--set", "model.num_head=5"}, 2, "did you mean model.num_heads?");
  check_fails({"--model", "vit_tiny", "--set", "optimizer.lr=1"}, 2, "keys of model and attention");
  check_fails({"--model", "vit_tiny", "--set", "model.name=vit_small"}, 2, "the model's name comes from --model");
  for (const char* unavailable :
       {"attention.bias_position=outside", "attention.class_attention_phi=same", "model.swin_pad=before_roll"}) {
    check_fails({"--model", "vit_tiny", "--set", unavailable}, 2, "is not available in this version");
  }
  check_fails({damaged}, 5, damaged);
  check_fails({folder / std::string(300, 'x')}, 5, "File name too long");
  check_fails({damaged, "--compare", folder / std::string(300, 'x')}, 5, "");
  check_fails({"/proc/self/mem/x"}, 5, "Not a directory");
  check_fails({folder / "missing.safetensors"}, 5, "missing.safetensors");
  check_fails({folder.path()}, 5, folder.path());
  check_fails(tiny({"--save", folder / "no/such/folder.safetensors"}), 5, "folder.safetensors");
  check_fails({damaged, "--device", "cuda:9"}, 6, "CUDA");
  const Outcome version = run_program("inspect", {"--version"});
  CHECK(version.code == 0);
  CHECK(version.out.find("inspect ") == 0);
}

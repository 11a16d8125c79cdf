// The benchmarks of polygrad_bench: one function each, which measures and returns the JSON line.
//
// Where this stands: main.cpp parses the command line into these options; each benchmark is one file. All of them
// measure against the same ceiling (ceiling.h), in turns with it, so that a ratio holds on a noisy machine.
// On a GPU the ceiling, and the way of taking times, are those of
// gpu.h. Read next: ceiling.h, gemm.cpp (the shortest), vit_step.cpp (the whole training step).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/device.h"

namespace polygrad::bench {

struct Common {
  int pairs = 11;      // measurements of the subject, each beside one of the ceiling; kTurns: see measure_pairs
  bool quiet = false;  // nothing on stderr
  Device device;       // gemm, attention, vit_step and op run on a GPU too
  std::int64_t ceiling = 8192;  // of a GPU: its ceiling is the product of two matrices of this size
  bool on_gpu() const { return device.type == DeviceType::cuda; }
};

struct GemmOptions {
  std::int64_t m = 8224, k = 192, n = 576;
  bool trans_a = false, trans_b = false;  // the factor lies transposed in memory
  std::string dtype = "f32";
};
std::string run_gemm(const GemmOptions& options, const Common& common);

struct AttentionOptions {
  std::string phi = "x3", path = "auto", scale = "auto", precision = "f32";
  std::int64_t batch = 4, heads = 2, tokens = 4096, head_dim = 32;
  std::vector<std::int64_t> lengths;  // of the batch's rows: the rest is padding, under masks
  bool forward_only = false;          // without a gradient
};
std::string run_attention(const AttentionOptions& options, const Common& common);

struct VitStepOptions {
  std::string model = "vit_tiny", phi = "x3", scale = "auto", path = "auto", precision = "f32";
  std::int64_t image = 64, patch = 4, classes = 200, batch = 32;
  std::int64_t depth = 0;  // blocks; 0: the model's own
  bool profile = false;    // tables of where the time goes, on stderr
  bool shortcuts = true;   // of the model
  bool capture = true;     // on a GPU: forward and backward start as one CUDA graph, as in training
  std::string data;        // an IDX folder; empty: generated images
  std::int64_t steps = 0;  // at least so many: those that no measurement needs follow behind
};
std::string run_vit_step(const VitStepOptions& options, const Common& common);

struct LraStepOptions {
  std::string task = "text", phi = "x3", scale = "14", path = "auto";
  std::int64_t batch = 8, tokens = 0;  // 0 tokens: the task's
  std::vector<std::int64_t> lengths;   // of the rows, in turn: the rest is padding; empty: all of it
  double dropout = 0.1, attention_dropout = 0;
  bool profile = false;  // tables of where the time goes, on stderr
};
std::string run_lra_step(const LraStepOptions& options, const Common& common);

struct OpOptions {
  std::string name = "gelu";  // or "all"
  std::string shape;          // empty: the op's own
};
// A line for each op that was asked for.
std::vector<std::string> run_op(const OpOptions& options, const Common& common);
// The names that run_op knows, for help texts.
std::string op_names();

struct LadderOptions {
  std::string name = "attention";  // or "layer_norm"
};
// A line for each rung.
std::vector<std::string> run_ladder(const LadderOptions& options, const Common& common);

struct LoaderBenchOptions {
  std::string data;  // a folder of pictures, as image_folder or Tiny-ImageNet lay them out
  int workers = 2;
  std::int64_t image = 64, batch = 256;
  std::int64_t samples = 4096;  // at most so many pictures, spread over the set
};
std::string run_loader(const LoaderBenchOptions& options, const Common& common);

}  // namespace polygrad::bench

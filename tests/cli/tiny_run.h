// A run of vit_train that takes a moment and needs no data set: 8 x 8 pixels in MNIST's files, a model of 5000 numbers.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "apps/training/metrics_log.h"
#include "engine/generator.h"
#include "tests/cli/program.h"

namespace polygrad::testing {

using Arguments = std::vector<std::string>;

inline void write_idx(const std::string& folder, const std::string& part, std::int64_t count) {
  const auto number = [](std::int64_t value) {
    std::string bytes;
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift & 255);
    return bytes;
  };
  std::string images = number(0x803) + number(count) + number(8) + number(8), labels = number(0x801) + number(count);
  Generator noise(static_cast<std::uint64_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto label = static_cast<std::size_t>(i % 4);
    std::string pixels(64, '\0');
    for (char& pixel : pixels) pixel = static_cast<char>(noise.uniform() * 120);
    pixels.replace(label * 8, 8, 8, '\xE6');
    images += pixels;
    labels += static_cast<char>(label);
  }
  write_bytes(folder + "/" + part + "-images-idx3-ubyte", images);
  write_bytes(folder + "/" + part + "-labels-idx1-ubyte", labels);
}

// Writes the data into `folder` and gives the arguments of a run in its subfolder `name`. A quarter of the `train`
// samples is validated on; batches of 4, so 40 samples are 8 steps an epoch.
inline Arguments tiny_run(const TemporaryFolder& folder, const std::string& name, const Arguments& settings = {},
                          const Arguments& flags = {}, std::int64_t train = 40, std::int64_t test = 12) {
  write_idx(folder.path(), "train", train);
  write_idx(folder.path(), "t10k", test);
  write_bytes(folder / "tiny.json", R"({
    "model": {"name": "vit_tiny", "image_size": 8, "patch_size": 4, "embed_dim": 12, "num_heads": 3, "depth": 2},
    "attention": {"phi": "x3"},
    "data": {"name": "idx", "val_fraction": 0.25},
    "train": {"batch_size": 4, "max_steps": 16, "log_every_steps": 1, "ema_decay": 0.9},
    "threads": 1
  })");
  Arguments arguments = {"--config", folder / "tiny.json", "--data", folder.path(), "--out", folder / name};
  for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return arguments;
}

inline Outcome train(const Arguments& arguments) { return run_program("vit_train", arguments); }

// The command line for a shell. Nothing in it needs quotes.
inline std::string shell_command(const Arguments& arguments) {
  std::string command = bin_dir() + "/vit_train";
  for (const std::string& argument : arguments) command += " " + argument;
  return command;
}

inline Outcome shell(const std::string& script) { return run_program("/bin/bash", {"-c", script}); }

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline std::vector<MetricsRow> rows_of(const std::string& folder, const std::string& event) {
  std::vector<MetricsRow> rows;
  if (!exists(folder + "/metrics.jsonl")) return rows;
  for (MetricsRow& row : read_metrics(folder + "/metrics.jsonl")) {
    if (row.event() == event) rows.push_back(std::move(row));
  }
  return rows;
}

// Of the last end row; "" where there is none.
inline std::string status_of(const std::string& folder) {
  const std::vector<MetricsRow> ends = rows_of(folder, "end");
  return ends.empty() ? "" : ends.back().json().find("status")->as_text();
}

// Waits while the process runs; false where it ended before, or a minute had passed.
inline bool wait_until(Process& process, const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (process.running() && std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// Waits until the run has logged `steps` train rows.
inline bool wait_for_steps(Process& process, const std::string& folder, std::size_t steps) {
  return wait_until(process, [&] { return rows_of(folder, "train").size() >= steps; });
}

}  // namespace polygrad::testing

// MetricsLog: the rows of metrics.jsonl, metrics.csv and norms.csv of a run folder, and of its TensorBoard event file.
//
// Where this stands: the trainer writes rows; plots, --resume of a finished run and reproduce read them.
// Promises: a row is in the file (out of this process) when write() returns; a number that is not finite is null; after
// a resume no step is there twice or missing. For the last one the trainer must write all rows of a step before it
// saves that step's checkpoint. A full disk does not end a training run (append_file.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/training/append_file.h"
#include "apps/training/json_text.h"
#include "apps/training/tensorboard.h"

namespace polygrad {

// One row: keys in the order they were added. "event" comes first.
class MetricsRow {
 public:
  explicit MetricsRow(std::string_view event);
  explicit MetricsRow(JsonValue object);
  MetricsRow& add(std::string_view key, double value);  // not finite: null
  MetricsRow& add(std::string_view key, std::int64_t value);
  MetricsRow& add(std::string_view key, int value) { return add(key, static_cast<std::int64_t>(value)); }
  MetricsRow& add(std::string_view key, std::uint64_t value);
  MetricsRow& add(std::string_view key, bool value);
  MetricsRow& add(std::string_view key, std::string_view value);
  MetricsRow& add(std::string_view key, const char* value) { return add(key, std::string_view(value)); }

  std::string event() const;
  std::int64_t step() const;                  // -1 where there is none
  double number(std::string_view key) const;  // NaN where it is null or missing
  const JsonValue& json() const { return json_; }

 private:
  JsonValue json_;
};

// The norms of one attention head (docs/attention.md), averaged over the probed samples; NaN where undefined.
struct HeadNorms {
  double attention = 0, jacobian_s = 0, jacobian_s_sq = 0, jacobian_q = 0, jacobian_q_sq = 0, jacobian_k = 0;
};

class MetricsLog {
 public:
  MetricsLog() = default;  // writes nowhere
  // Opens the files of `folder`, tensorboard/ only where asked for. `resumed_step` empty: they begin anew. Else a cut
  // or damaged line is dropped, and so is each row of a later step, and those of the step itself whose event is in
  // `redone`: they will be written again. Then rows are appended. Throws IoError.
  MetricsLog(const std::string& folder, std::optional<std::int64_t> resumed_step,
             const std::vector<std::string>& redone = {}, bool tensorboard = false);

  // To metrics.jsonl, to metrics.csv unless it is a norms row, and to TensorBoard's.
  void write(const MetricsRow& row);
  // A line of norms.csv per head; layers count from 1, heads from 0. Write it before the layer's norms row.
  void write_norms(std::int64_t step, double epoch, std::int64_t layer, const std::vector<HeadNorms>& heads);
  // Makes what was written durable; call it before a checkpoint becomes the latest one.
  void sync();
  // "" or why rows are waiting (no space left on device).
  std::string trouble() const;

 private:
  void tell_trouble();
  AppendFile jsonl_, csv_, norms_;
  TensorBoardLog tensorboard_;
  bool told_ = false;  // of the trouble that there is
};

// All complete rows of a metrics.jsonl; a cut or damaged line is left out. Throws IoError where it can't be read.
std::vector<MetricsRow> read_metrics(const std::string& path);

}  // namespace polygrad

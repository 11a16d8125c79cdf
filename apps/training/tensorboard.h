// TensorBoardLog: the rows of metrics.jsonl once more, as the event file that TensorBoard reads.
//
// Where this stands: MetricsLog (metrics_log.h) hands it every row; nothing of TensorBoard's is needed.
// The format: an event file is a sequence of TFRecords
//     u64 length, u32 crc(length), `length` bytes, u32 crc(those bytes)        crc: CRC-32C, rotated and shifted
// each holding one Event, a Protocol Buffers message; all integers little-endian. Tags are GROUP/NAME, and TensorBoard
// makes a section of each group:
//     train/loss train/lr train/grad_norm train/top1 ...     val/loss val/top1 ...     test/loss ...
//     attention/layer_02 jacobian_s/layer_02 ...             the norms, means over the heads
// A number that is not finite is NaN. RUN/tensorboard/ holds one file: what a resume keeps is copied into a new one, so
// every reader finds each step once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apps/training/append_file.h"

namespace polygrad {

class MetricsRow;

// CRC-32C (Castagnoli): of "123456789" it is 0xE3069283.
std::uint32_t crc32c(std::string_view bytes);
// The payloads of an event file, up to the first record that is cut or damaged.
std::vector<std::string> read_event_records(std::string_view file);

class TensorBoardLog {
 public:
  TensorBoardLog() = default;  // writes nowhere
  // Begins the event file of `run_folder`, with the events of earlier ones up to `last_step` (none: -1), which are
  // removed; without those of the test part, which a run that goes on looks at again. Throws IoError.
  TensorBoardLog(const std::string& run_folder, std::int64_t last_step);

  // Whether nothing was taken over.
  bool begins() const { return begins_; }
  // A row of training, evaluation or norms; others have no place here.
  void write(const MetricsRow& row);
  void sync() { file_.sync(); }
  const std::string& trouble() const { return file_.trouble(); }

 private:
  AppendFile file_;
  bool begins_ = false;
};

}  // namespace polygrad

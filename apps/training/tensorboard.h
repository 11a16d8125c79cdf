// TensorBoardLog: the rows of metrics.jsonl once more, as the event file that TensorBoard reads.
//
// Where this stands: MetricsLog (metrics_log.h) hands it every row; nothing of TensorBoard's is needed.
// The format: an event file is a sequence of TFRecords
//     u64 length, u32 crc(length), `length` bytes, u32 crc(those bytes)        crc: CRC-32C, rotated and shifted
// each holding one Event, a Protocol Buffers message; all integers little-endian. Tags are GROUP/NAME, and TensorBoard
// makes a section of each group:
//     train/loss train/lr train/grad_norm train/top1 ...     val/loss val/top1 ...     test/loss ...
//     attention/layer_02 jacobian_s/layer_02 ...             the norms, means over the heads
// A number that is not finite is NaN. Each start of a run begins a file in RUN/tensorboard/; a resume cuts off those of
// earlier starts where it takes another way, so that every reader finds each step once.
#pragma once

#include <cstdint>
#include <optional>
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
  // Begins an event file of `run_folder`. `resumed_step` empty: earlier ones are removed. Else they lose what is cut or
  // damaged, each event of a later step, those of the step itself that will be written again (`redone`, as MetricsLog
  // has it), and those of the test part, which a run that goes on looks at again. Throws IoError.
  TensorBoardLog(const std::string& run_folder, std::optional<std::int64_t> resumed_step,
                 const std::vector<std::string>& redone = {});

  // Whether no earlier number is there.
  bool begins() const { return begins_; }
  // A row of training, evaluation or norms; others have no place here.
  void write(const MetricsRow& row);
  void sync() { file_.sync(); }
  const std::string& trouble() const { return file_.trouble(); }

 private:
  AppendFile file_;
  bool begins_ = true;
};

}  // namespace polygrad

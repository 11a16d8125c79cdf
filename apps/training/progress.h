// Progress: the line a user watches. One line on a terminal, rewritten in place; silent elsewhere.
//
// Where this stands: the trainer updates it, a program gives it somewhere to write. It prints nothing itself.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace polygrad {

struct ProgressState {
  std::int64_t step = 0, total_steps = 0;
  double epoch = 0, epochs = 0;  // passes completed, planned
  double loss = 0;
  double accuracy = 0;  // percent, of the training samples; NaN (with mixed targets it means little): left out
  double lr = 0, grad_norm = 0;
  std::int64_t skipped = 0;  // steps that were left out; 0: not shown
  double samples_per_s = 0;
  double seconds_left = 0;  // NaN where not known yet
};

// "epoch 2/10  step 812/4300  loss 0.5123  acc 81.4%  lr 1.83e-03  norm 0.92  eta 1:12  2,950/s"
std::string progress_line(const ProgressState& state);
// "0:07", "12:34", "3:05:00", "2d 04:00"; "?" where not finite or negative.
std::string format_duration(double seconds);

// The width of the terminal behind a file descriptor; 0 where it is none.
int terminal_columns(int descriptor);

class Progress {
 public:
  using Output = std::function<void(std::string_view)>;
  Progress() = default;  // silent
  // `output` gets text and control characters for a terminal that is `columns` wide. Empty: silent.
  explicit Progress(Output output, int columns = 80, double seconds_between = 0.1);

  // Rewrites the line; skipped where the last one is younger than `seconds_between` (`now`: seconds of any steady
  // clock).
  void update(const ProgressState& state, double now);
  // A line of text above it (with or without its line end): the progress line is cleared, and comes again with the next
  // update.
  void message(std::string_view text);
  // Leaves the last line standing and goes to the next.
  void finish();
  bool active() const { return static_cast<bool>(output_); }

 private:
  Output output_;
  int columns_ = 80;
  double seconds_between_ = 0.1, last_ = 0;
  bool shown_ = false;   // a line stands on the terminal
  std::string pending_;  // the newest line that was skipped
};

}  // namespace polygrad

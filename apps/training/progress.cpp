#include "apps/training/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "engine/format.h"

namespace polygrad {

namespace {

constexpr const char* kClearLine = "\r\x1b[2K";

// 1234567 -> "1,234,567"
std::string grouped(double value) {
  std::string digits = format("{:.0f}", value);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return digits;
}

// 3 -> "3", 0.25 -> "0.25"
std::string plain(double value) {
  return value == std::floor(value) ? format("{:.0f}", value) : format("{:.2f}", value);
}

// A line that wraps could not be rewritten in place: it is squeezed, then loses fields from its end. None is cut in
// two, as "2,950/s" cut to "2,9" reads like another number.
std::string fitted(std::string line, std::size_t room) {
  std::string squeezed = line;
  for (std::size_t at; squeezed.size() > room && (at = squeezed.find("  ")) != std::string::npos;)
    squeezed.erase(at, 1);
  if (squeezed.size() <= room) return squeezed;
  const std::size_t last = line.rfind("  ");
  if (last == std::string::npos) return line.substr(0, room);
  return fitted(line.substr(0, last), room);
}

}  // namespace

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "?";
  const auto total = static_cast<long long>(std::llround(seconds));
  const long long days = total / 86400, hours = total / 3600 % 24, minutes = total / 60 % 60, rest = total % 60;
  if (days > 0) return format("{}d {:02}:{:02}", days, hours, minutes);
  if (hours > 0) return format("{}:{:02}:{:02}", hours, minutes, rest);
  return format("{}:{:02}", minutes, rest);
}

std::string progress_line(const ProgressState& state) {
  // The pass that is going on, counted from 1.
  const double current = std::min(std::floor(state.epoch) + 1, std::max(std::ceil(state.epochs), 1.0));
  std::string line = format("epoch {:.0f}/{}  step {}/{}  loss {:.4f}", current, plain(state.epochs), state.step,
                            state.total_steps, state.loss);
  if (std::isfinite(state.accuracy)) line += format("  acc {:.1f}%", state.accuracy);
  line += format("  lr {:.2e}  norm {:.2f}", state.lr, state.grad_norm);
  if (state.skipped > 0) line += format("  skipped {}", state.skipped);
  line += format("  eta {}", format_duration(state.seconds_left));
  if (std::isfinite(state.samples_per_s) && state.samples_per_s > 0)
    line += format("  {}/s", grouped(state.samples_per_s));
  return line;
}

int terminal_columns(int descriptor) {
  if (::isatty(descriptor) == 0) return 0;
  constexpr int kUsual = 80;
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

Progress::Progress(Output output, int columns, double seconds_between)
    : output_(std::move(output)), columns_(columns), seconds_between_(seconds_between) {}

void Progress::update(const ProgressState& state, double now) {
  if (!output_) return;
  std::string line = fitted(progress_line(state), static_cast<std::size_t>(std::max(columns_, 2)) - 1);
  if (shown_ && now - last_ < seconds_between_) {
    pending_ = std::move(line);
    return;
  }
  output_(kClearLine + line);
  pending_.clear();
  shown_ = true;
  last_ = now;
}

void Progress::message(std::string_view text) {
  if (!output_) return;
  const bool ended = !text.empty() && text.back() == '\n';
  output_((shown_ ? kClearLine : "") + std::string(text) + (ended ? "" : "\n"));
  shown_ = false;
}

void Progress::finish() {
  if (!output_) return;
  if (!pending_.empty()) output_(kClearLine + pending_);
  if (shown_) output_("\n");
  pending_.clear();
  shown_ = false;
}

}  // namespace polygrad

// The progress line, durations, and silence where nobody watches.
#include "apps/training/progress.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <limits>

using namespace polygrad;

namespace {

ProgressState some_state() {
  ProgressState state;
  state.step = 812;
  state.total_steps = 4300;
  state.epoch = 1.89;
  state.epochs = 10;
  state.loss = 0.51234;
  state.accuracy = 81.44;
  state.lr = 1.834e-3;
  state.grad_norm = 0.917;
  state.samples_per_s = 2950.4;
  state.seconds_left = 72;
  return state;
}

}  // namespace

TEST_CASE("the line has epoch, step, loss, accuracy, rate, norm, time left and speed") {
  CHECK(progress_line(some_state()) ==
        "epoch 2/10  step 812/4300  loss 0.5123  acc 81.4%  lr 1.83e-03  norm 0.92  eta 1:12  2,950/s");
  ProgressState last = some_state();
  last.epoch = 10;  // all passes done: the last one is named
  last.accuracy = std::numeric_limits<double>::quiet_NaN();
  last.seconds_left = std::numeric_limits<double>::quiet_NaN();
  last.samples_per_s = 1234567;
  CHECK(progress_line(last) == "epoch 10/10  step 812/4300  loss 0.5123  lr 1.83e-03  norm 0.92  eta ?  1,234,567/s");
  last.epoch = 0.2;
  last.epochs = 0.5;
  CHECK(progress_line(last).substr(0, 11) == "epoch 1/0.5");
}

TEST_CASE("durations") {
  CHECK(format_duration(0) == "0:00");
  CHECK(format_duration(7.4) == "0:07");
  CHECK(format_duration(754) == "12:34");
  CHECK(format_duration(3 * 3600 + 5 * 60) == "3:05:00");
  CHECK(format_duration(2 * 86400 + 4 * 3600) == "2d 04:00");
  CHECK(format_duration(-1) == "?");
  CHECK(format_duration(std::numeric_limits<double>::infinity()) == "?");
}

TEST_CASE("the line is rewritten in place, at most so often; the last one stays") {
  std::string out;
  Progress progress([&](std::string_view text) { out += text; }, 200, 0.1);
  ProgressState state = some_state();
  progress.update(state, 10.0);
  CHECK(out == "\r\x1b[2K" + progress_line(state));
  out.clear();
  state.step = 813;
  progress.update(state, 10.05);
  CHECK(out.empty());
  state.step = 814;
  progress.update(state, 10.11);
  CHECK(out == "\r\x1b[2K" + progress_line(state));
  state.step = 815;
  progress.update(state, 10.12);
  out.clear();
  progress.finish();
  CHECK(out == "\r\x1b[2K" + progress_line(state) + "\n");
  out.clear();
  progress.finish();
  CHECK(out.empty());
}

TEST_CASE("a message stands above the line") {
  std::string out;
  Progress progress([&](std::string_view text) { out += text; }, 200, 0.1);
  progress.message("saved");
  CHECK(out == "saved\n");
  progress.message("with its line end\n");
  CHECK(out == "saved\nwith its line end\n");
  progress.update(some_state(), 1);
  out.clear();
  progress.message("val top1 86.2");
  CHECK(out == "\r\x1b[2Kval top1 86.2\n");
  out.clear();
  progress.update(some_state(), 1.01);  // at once: no line stands there
  CHECK(out == "\r\x1b[2K" + progress_line(some_state()));
}

TEST_CASE("a narrow terminal never gets a line that wraps") {
  for (const int columns : {95, 80, 40, 2}) {
    std::string out;
    Progress progress([&](std::string_view text) { out += text; }, columns);
    progress.update(some_state(), 0);
    CHECK(out.size() - 5 <= static_cast<std::size_t>(columns - 1));
  }
}

TEST_CASE("a narrow terminal shows whole fields, and as many as it has room for") {
  const std::string all = progress_line(some_state());
  std::vector<std::string> fields;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find("  ", at), all.size());
    fields.push_back(all.substr(at, end - at));
    at = end + 2;
  }
  for (std::size_t count = 1; count < fields.size(); ++count) {
    std::string shown = fields[0];
    for (std::size_t i = 1; i < count; ++i) shown += " " + fields[i];
    for (const std::size_t more : {std::size_t{0}, fields[count].size()}) {  // of the room that the next field needs
      std::string out;
      Progress progress([&](std::string_view text) { out += text; }, static_cast<int>(shown.size() + 1 + more));
      progress.update(some_state(), 0);
      std::string line = out.substr(5);
      for (std::size_t at; (at = line.find("  ")) != std::string::npos;) line.erase(at, 1);
      CHECK(line == shown);
    }
  }
}

TEST_CASE("silent without an output, and no terminal has no width") {
  Progress progress;
  CHECK_FALSE(progress.active());
  progress.update(some_state(), 0);
  progress.message("nobody hears it");
  progress.finish();
  const int null = open("/dev/null", O_WRONLY);
  CHECK(terminal_columns(null) == 0);
  close(null);
}

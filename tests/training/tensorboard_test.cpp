// TensorBoard event files: the framing, what a reader finds, and what a resume keeps.
#include "apps/training/tensorboard.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>

#include "apps/training/metrics_log.h"
#include "engine/error.h"
#include "tests/support/isolation.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A reader of the tests' own, which knows the layout of an Event and nothing else.
struct Scalar {
  std::string tag;
  std::int64_t step;
  float value;
};

struct Bytes {
  std::string text;
  std::size_t at = 0;
  bool more() const { return at < text.size(); }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      REQUIRE(at < text.size());
      const auto byte = static_cast<unsigned char>(text[at++]);
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
  }
  std::string take(std::size_t count) {
    REQUIRE(at + count <= text.size());
    at += count;
    return text.substr(at - count, count);
  }
};

struct Events {
  int versions = 0, starts = 0;
  std::vector<Scalar> scalars;
  std::vector<double> wall_times;
};

void read_event(const std::string& payload, Events& events) {
  Bytes event{payload};
  std::int64_t step = 0;
  while (event.more()) {
    switch (event.varint()) {
      case 1 << 3 | 1: {
        double time = 0;
        std::memcpy(&time, event.take(8).data(), 8);
        events.wall_times.push_back(time);
        break;
      }
      case 2 << 3:
        step = static_cast<std::int64_t>(event.varint());
        break;
      case 3 << 3 | 2:
        CHECK(event.take(event.varint()) == "brain.Event:2");
        ++events.versions;
        break;
      case 7 << 3 | 2:
        CHECK(event.take(event.varint()) == std::string("\x08\x01"));
        ++events.starts;
        break;
      case 5 << 3 | 2: {
        Bytes summary{event.take(event.varint())};
        while (summary.more()) {
          REQUIRE(summary.varint() == (1 << 3 | 2));
          Bytes value{summary.take(summary.varint())};
          REQUIRE(value.varint() == (1 << 3 | 2));
          Scalar scalar{value.take(value.varint()), step, 0};
          REQUIRE(value.varint() == (2 << 3 | 5));
          std::memcpy(&scalar.value, value.take(4).data(), 4);
          CHECK(!value.more());
          events.scalars.push_back(scalar);
        }
        break;
      }
      default:
        FAIL("an unknown field");
    }
  }
}

std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/tensorboard"))
    files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

Events read_events(const std::string& folder) {
  Events events;
  for (const std::string& file : event_files(folder)) {
    for (const std::string& payload : read_event_records(read_bytes(file))) read_event(payload, events);
  }
  return events;
}

std::vector<std::int64_t> steps_of(const Events& events, const std::string& tag) {
  std::vector<std::int64_t> steps;
  for (const Scalar& scalar : events.scalars) {
    if (scalar.tag == tag) steps.push_back(scalar.step);
  }
  return steps;
}

void write_steps(MetricsLog& log, std::int64_t first, std::int64_t last) {
  for (std::int64_t step = first; step <= last; ++step) {
    log.write(MetricsRow("train").add("step", step).add("epoch", 0.5).add("loss", 1.0 / static_cast<double>(step)));
  }
}

MetricsRow eval_row(const char* split, std::int64_t step) {
  return MetricsRow("eval").add("split", split).add("step", step).add("top1", 50.0).add("count", 7);
}

}  // namespace

TEST_CASE("CRC-32C: the known values") {
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xE3069283u);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAu);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62A8AB43u);
}

TEST_CASE("the bytes of a file: length, its check, an Event, its check") {
  const TemporaryFolder folder;
  MetricsLog log(folder.path(), std::nullopt, {}, true);
  const std::vector<std::string> files = event_files(folder.path());
  REQUIRE(files.size() == 1);
  CHECK(files[0].find("/tensorboard/events.out.tfevents.") != std::string::npos);
  const std::string file = read_bytes(files[0]);
  // 9 bytes of time, 2 of the step, and 15 of "brain.Event:2".
  constexpr std::size_t kPayload = 9 + 2 + 15;
  CHECK(file.substr(0, 8) == std::string("\x1a\0\0\0\0\0\0\0", 8));
  const auto masked = [](const std::string& bytes) {
    const std::uint32_t crc = crc32c(bytes);
    const std::uint32_t value = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
    std::string text(4, '\0');
    std::memcpy(text.data(), &value, 4);
    return text;
  };
  CHECK(file.substr(8, 4) == masked(file.substr(0, 8)));
  CHECK(file.substr(12 + 9, kPayload - 9) == std::string("\x10\0\x1a\x0d", 4) + "brain.Event:2");
  CHECK(file.substr(12 + kPayload, 4) == masked(file.substr(12, kPayload)));
}

TEST_CASE("each row's numbers are scalars under their tags, and what is not finite is NaN") {
  const TemporaryFolder folder;
  MetricsLog log(folder.path(), std::nullopt, {}, true);
  log.write(MetricsRow("start").add("step", 0).add("params", 10));
  log.write(MetricsRow("norms").add("step", 0).add("epoch", 0.0).add("layer", 12).add("attention", 2.5));
  log.write(MetricsRow("train").add("step", 300).add("epoch", 1.5).add("loss", kNan).add("lr", 1e-3));
  log.write(eval_row("val", 300));
  log.write(eval_row("test", 200).add("weights", "last"));
  log.write(MetricsRow("end").add("status", "done").add("step", 300).add("seconds", 3.0));
  const Events events = read_events(folder.path());
  CHECK(events.versions == 1);
  CHECK(events.starts == 1);
  std::map<std::string, float> values;
  for (const Scalar& scalar : events.scalars) values[scalar.tag] = scalar.value;
  CHECK(values.size() == events.scalars.size());
  REQUIRE(values.size() == 5);
  CHECK(values.at("attention/layer_12") == 2.5f);
  CHECK(std::isnan(values.at("train/loss")));
  CHECK(values.at("train/lr") == 1e-3f);
  CHECK(values.at("val/top1") == 50.0f);
  CHECK(values.at("test_last/top1") == 50.0f);
  CHECK(steps_of(events, "train/loss") == std::vector<std::int64_t>{300});
  CHECK(steps_of(events, "attention/layer_12") == std::vector<std::int64_t>{0});
  for (const double time : events.wall_times) CHECK(time > 1.7e9);
}

TEST_CASE("a resume keeps each step once, with its time, and drops the look at the test part") {
  const TemporaryFolder folder;
  std::vector<double> times;
  {
    MetricsLog log(folder.path(), std::nullopt, {}, true);
    write_steps(log, 1, 9);
    log.write(eval_row("test", 3));
    log.write(eval_row("test", 4).add("weights", "last"));
    times = read_events(folder.path()).wall_times;
  }
  {
    MetricsLog log(folder.path(), 6, {}, true);
    write_steps(log, 7, 12);
  }
  REQUIRE(event_files(folder.path()).size() == 2);
  const Events events = read_events(folder.path());
  CHECK(steps_of(events, "train/loss") == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  CHECK(steps_of(events, "test/top1").empty());
  CHECK(steps_of(events, "test_last/top1").empty());
  CHECK(events.versions == 2);
  CHECK(events.starts == 2);
  for (std::size_t i = 2; i < 8; ++i) CHECK(events.wall_times[i] == times[i]);
  // Again, to before the second start; then a new run in the same folder begins anew.
  {
    MetricsLog log(folder.path(), 5, {}, true);
    write_steps(log, 6, 7);
  }
  CHECK(steps_of(read_events(folder.path()), "train/loss") == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7});
  MetricsLog log(folder.path(), std::nullopt, {}, true);
  CHECK(event_files(folder.path()).size() == 1);
  CHECK(read_events(folder.path()).scalars.empty());
}

TEST_CASE("cut at any byte, as a kill leaves it, a resume repairs the file") {
  const TemporaryFolder whole;
  std::size_t kept = 0;
  {
    MetricsLog log(whole.path(), std::nullopt, {}, true);
    write_steps(log, 1, 2);
    kept = read_bytes(event_files(whole.path())[0]).size();
    write_steps(log, 3, 4);
  }
  const std::string name = event_files(whole.path())[0].substr(whole.path().size());
  const std::string file = read_bytes(whole.path() + name);
  for (std::size_t length = kept; length <= file.size(); ++length) {
    const TemporaryFolder folder;
    std::filesystem::create_directories(folder / "tensorboard");
    write_bytes(folder.path() + name, file.substr(0, length));
    MetricsLog log(folder.path(), 2, {}, true);
    write_steps(log, 3, 3);
    CHECK(steps_of(read_events(folder.path()), "train/loss") == std::vector<std::int64_t>{1, 2, 3});
  }
  // A damaged byte ends the reading there, whichever it is.
  for (std::size_t at = kept; at < kept + (file.size() - kept) / 2; ++at) {
    std::string damaged = file;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    CHECK(read_event_records(damaged).size() == 4);
  }
  CHECK(read_event_records(file).size() == 6);
}

TEST_CASE("rows of the step itself that will be written again are dropped") {
  for (const bool evaluation : {false, true}) {
    const TemporaryFolder folder;
    const auto norms = [](std::int64_t step) {
      return MetricsRow("norms").add("step", step).add("layer", 1).add("attention", 1.0);
    };
    {
      MetricsLog log(folder.path(), std::nullopt, {}, true);
      for (std::int64_t step = 1; step <= 2; ++step) {
        write_steps(log, step, step);
        log.write(eval_row("val", step));
        log.write(norms(step));
      }
    }
    std::vector<std::string> redone = {"norms"};
    if (evaluation) redone.push_back("eval");
    MetricsLog log(folder.path(), 2, redone, true);
    const Events events = read_events(folder.path());
    CHECK(steps_of(events, "train/loss") == std::vector<std::int64_t>{1, 2});
    CHECK(steps_of(events, "val/top1").size() == (evaluation ? 1 : 2));
    CHECK(steps_of(events, "attention/layer_01") == std::vector<std::int64_t>{1});
  }
}

TEST_CASE("switched on at a resume, it has the earlier rows too") {
  const TemporaryFolder folder;
  {
    MetricsLog log(folder.path(), std::nullopt);
    write_steps(log, 1, 5);
    CHECK(!std::filesystem::exists(folder / "tensorboard"));
  }
  MetricsLog log(folder.path(), 4, {}, true);
  write_steps(log, 5, 6);
  CHECK(steps_of(read_events(folder.path()), "train/loss") == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("a full disk ends nothing: whole records only, and the rest when there is room") {
  const TemporaryFolder folder;
  const int code = testing::run_in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    TensorBoardLog log(folder.path(), std::nullopt);
    const auto row = [](std::int64_t step) { return MetricsRow("train").add("step", step).add("loss", 1.0); };
    log.write(row(1));
    const std::string file = event_files(folder.path())[0];
    const auto size = std::filesystem::file_size(file);
    rlimit limit = {};
    getrlimit(RLIMIT_FSIZE, &limit);
    const rlim_t all = limit.rlim_cur;
    limit.rlim_cur = size + 10;  // less than a record
    setrlimit(RLIMIT_FSIZE, &limit);
    log.write(row(2));
    log.write(row(3));
    if (log.trouble().find("tfevents") == std::string::npos) return 1;
    if (std::filesystem::file_size(file) != size) return 2;
    limit.rlim_cur = all;
    setrlimit(RLIMIT_FSIZE, &limit);
    log.write(row(4));
    return log.trouble().empty() ? 0 : 3;
  });
  CHECK(code == 0);
  CHECK(steps_of(read_events(folder.path()), "train/loss") == std::vector<std::int64_t>{1, 2, 3, 4});
}

TEST_CASE("a folder that can't be made is an IoError; a log without one writes nowhere") {
  const TemporaryFolder folder;
  write_bytes(folder / "tensorboard", "");
  CHECK_THROWS_AS(TensorBoardLog(folder.path(), std::nullopt), IoError);
  TensorBoardLog nowhere;
  nowhere.write(MetricsRow("train").add("step", 1).add("loss", 1.0));
  nowhere.sync();
  CHECK(nowhere.trouble().empty());
}

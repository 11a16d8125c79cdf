#include "apps/training/plots.h"

#include <doctest/doctest.h>

#include <clocale>
#include <cmath>
#include <fstream>
#include <regex>
#include <string>

#include "apps/training/chart.h"
#include "engine/error.h"
#include "engine/file.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using polygrad::testing::TemporaryFolder;

namespace {

// Points that the SVG draws in the curve of this title, in all panels: marks, or corners of the line.
int points_drawn(const std::string& svg, const std::string& title, bool marked) {
  int count = 0;
  const std::string head = "<title>" + title + "</title>";
  for (std::size_t at = svg.find(head); at != std::string::npos; at = svg.find(head, at + 1)) {
    const std::size_t end = svg.find("<title>", at + 1);
    const std::string group = svg.substr(at, end == std::string::npos ? end : end - at);
    // The first coloured path after the title is the curve; behind the last one come the axes.
    const std::size_t path = group.find("<path stroke='rgb"), line_end = group.find("'/>", path);
    const std::string line = path == std::string::npos ? "" : group.substr(path, line_end - path);
    static const std::regex mark("<use xlink:href='#gpPt"), corner("[ML]-?[0-9.]+,-?[0-9.]+");
    const std::string& body = marked ? group : line;
    count += static_cast<int>(
        std::distance(std::sregex_iterator(body.begin(), body.end(), marked ? mark : corner), std::sregex_iterator()));
  }
  return count;
}

std::string row(const std::string& text) { return text + "\n"; }

// A run folder with `steps` training rows, an evaluation each 10, and norms of `layers` layers each 20, whose first
// Jacobian is undefined.
void write_run(const std::string& folder, const std::string& phi, int steps, int layers) {
  std::filesystem::create_directories(folder);
  write_file_atomically(folder + "/config.json",
                        "{\"attention\": {\"phi\": \"" + phi + "\"}, \"data\": {\"name\": \"idx\"}}");
  std::string rows = row(R"({"event":"start","step":0,"params":10})");
  for (int step = 1; step <= steps; ++step) {
    const std::string at = "\"step\":" + std::to_string(step) + ",\"epoch\":" + std::to_string(step / 10.0);
    rows += row(R"({"event":"train",)" + at + ",\"loss\":" + std::to_string(5.0 / step) +
                R"(,"lr":0.001,"grad_norm":)" + (step == 3 ? "null" : "2.5") + "}");
    if (step % 10 == 0) {
      rows += row(R"({"event":"eval","split":"val",)" + at + R"(,"loss":1.5,"top1":40.5,"count":100})");
    }
    if (step % 20 != 0) continue;
    for (int layer = 1; layer <= layers; ++layer) {
      rows += row(R"({"event":"norms",)" + at + ",\"layer\":" + std::to_string(layer) +
                  R"(,"attention":0.5,"attention_min":0.1,"attention_max":1,"jacobian_s":)" +
                  (step == 20 ? "null" : "0.25") +
                  R"(,"jacobian_s_sq":0,"jacobian_q":1,"jacobian_q_sq":1,"jacobian_k":2})");
    }
  }
  write_file_atomically(folder + "/metrics.jsonl", rows);
}

}  // namespace

TEST_CASE("a run's pictures have its points, and those of several runs all of them") {
  const TemporaryFolder folder;
  write_run(folder.path() + "/a", "x3", 60, 3);
  write_run(folder.path() + "/b", "softmax", 40, 2);
  CHECK(plot_runs({folder.path() + "/a"}, folder.path() + "/a/plots") == "");
  const std::string loss = read_file(folder.path() + "/a/plots/loss.svg");
  CHECK(points_drawn(loss, "training", false) == 60);
  CHECK(points_drawn(loss, "validation", true) == 6);
  // A null is no point: the curve has one less.
  CHECK(points_drawn(read_file(folder.path() + "/a/plots/grad_norm.svg"), "gradient", false) == 59);
  CHECK(points_drawn(read_file(folder.path() + "/a/plots/accuracy.svg"), "validation", true) == 6);
  CHECK(points_drawn(read_file(folder.path() + "/a/plots/lr.svg"), "lr", false) == 60);
  CHECK(!std::filesystem::exists(folder.path() + "/a/plots/jacobian_s_sq.svg"));  // zeros have no place on a log axis
  CHECK(!std::filesystem::exists(folder.path() + "/a/plots/gnuplot.log"));

  CHECK(plot_runs({folder.path() + "/a", folder.path() + "/b"}, folder.path() + "/both") == "");
  const std::string attention = read_file(folder.path() + "/both/attention.svg");
  CHECK(points_drawn(attention, "x3", true) == 3 * 3);
  CHECK(points_drawn(attention, "softmax", true) == 2 * 2);
  CHECK(points_drawn(read_file(folder.path() + "/both/jacobian_s.svg"), "x3", true) == 3 * 2);
  for (const char* norm : {"jacobian_q", "jacobian_q_sq", "jacobian_k"}) {
    const std::string svg = read_file(folder.path() + "/both/" + norm + ".svg");
    CHECK(points_drawn(svg, "x3", true) == 3 * 3);
    CHECK(points_drawn(svg, "softmax", true) == 2 * 2);
    CHECK(svg.find("‖dP/dW_") != std::string::npos);
  }
  CHECK(points_drawn(read_file(folder.path() + "/both/lr.svg"), "softmax", false) == 40);
  CHECK(points_drawn(read_file(folder.path() + "/both/grad_norm.svg"), "x3", false) == 59);
  CHECK(points_drawn(read_file(folder.path() + "/both/accuracy.svg"), "x3, validation", true) == 6);
  CHECK(points_drawn(read_file(folder.path() + "/both/loss.svg"), "softmax, training", false) == 40);
}

TEST_CASE("learning rates that are all alike are one curve") {
  const TemporaryFolder folder;
  write_run(folder.path() + "/a", "x3", 7, 1);
  write_run(folder.path() + "/b", "softmax", 7, 1);
  CHECK(plot_runs({folder.path() + "/a", folder.path() + "/b"}, folder.path() + "/both") == "");
  const std::string svg = read_file(folder.path() + "/both/lr.svg");
  CHECK(points_drawn(svg, "all runs", false) == 7);
  CHECK(points_drawn(svg, "x3", false) == 0);
}

TEST_CASE("a run that diverges leaves the others' curves readable") {
  const TemporaryFolder folder;
  const auto has = [&](const std::string& file, const std::string& text) {
    return read_file(folder.path() + "/p/" + file).find(text) != std::string::npos;
  };
  for (const char* name : {"a", "b"}) write_run(folder.path() + "/" + name, "x3", 20, 1);
  const std::vector<std::string> runs = {folder.path() + "/a", folder.path() + "/b"};
  plot_runs(runs, folder.path() + "/p");
  CHECK_FALSE(has("loss.gp", "yrange"));
  CHECK_FALSE(has("lr.gp", "logscale"));
  write_file_atomically(folder.path() + "/b/metrics.jsonl",
                        row(R"({"event":"train","step":1,"epoch":0.1,"loss":2500,"lr":20,"top1":90})") +
                            row(R"({"event":"eval","split":"val","step":1,"epoch":0.1,"loss":9,"top1":0.1})"));
  plot_runs(runs, folder.path() + "/p");
  CHECK(has("loss.gp", "set yrange [*:9.45]"));  // the others' largest, and a little
  CHECK(has("loss.gp", "cross-entropy (in all up to 2.5e+03)"));
  CHECK(has("lr.gp", "set logscale y"));
  CHECK_FALSE(has("accuracy.gp", "logscale"));
}

TEST_CASE("a picture is the same whichever was drawn before it in the same call") {
  const TemporaryFolder folder;
  const auto chart = [](const std::string& name, bool log_y, double end) {
    Chart result;
    result.name = name;
    result.log_y = log_y;
    result.panels = {{"", {{"a", {{1, 1}, {end, 1000}}, 0, false}}}};
    return result;
  };
  const Chart plain = chart("plain", false, 3), log = chart("log", true, 1);
  const auto curve_of = [&](const std::vector<Chart>& charts) {
    draw_charts(folder.path(), charts);
    const std::string svg = read_file(folder.path() + "/plain.svg");
    const std::size_t path = svg.find("<path stroke='rgb(  0, 114, 178)'");
    REQUIRE(path != std::string::npos);
    return svg.substr(path, svg.find("/>", path) - path);
  };
  CHECK(curve_of({log, plain}) == curve_of({plain}));
}

TEST_CASE("runs are called by their activation, or by their folder where that would not tell them apart") {
  const TemporaryFolder folder;
  write_run(folder.path() + "/first", "x3", 1, 1);
  write_run(folder.path() + "/second", "x3", 1, 1);
  write_run(folder.path() + "/third", "softmax", 1, 1);
  const std::vector<RunRows> alike = read_runs({folder.path() + "/first/", folder.path() + "/second"});
  CHECK(alike[0].label == "first");
  CHECK(alike[1].label == "second");
  const std::vector<RunRows> different = read_runs({folder.path() + "/first", folder.path() + "/third"});
  CHECK(different[0].label == "x3");
  CHECK(different[1].label == "softmax");
  CHECK_THROWS_WITH_AS(read_runs({folder.path()}),
                       ("[plots] " + folder.path() + " is no run folder: it has no metrics.jsonl").c_str(), IoError);
}

TEST_CASE("a number that is not finite is a gap, a single point is seen, and layers share one axis") {
  const TemporaryFolder folder;
  const double nan = std::nan("");
  Chart chart;
  chart.name = "gap";
  chart.log_y = chart.same_y = true;
  chart.panels.push_back(
      {"1", {{"gap", {{0, nan}, {1, 20}, {2, 30}, {3, nan}, {4, nan}, {5, 40}, {6, 50}}, 0, false}}});
  chart.panels.push_back({"2", {{"one", {{1, 70000}, {2, nan}}, 1, false}}});
  const std::string script = gnuplot_script(chart);
  CHECK(script.find("$curve0 << END\n1 20\n2 30\n\n5 40\n6 50\nEND\n") != std::string::npos);
  CHECK(script.find("set yrange [1e1:1e5]\n") != std::string::npos);
  CHECK(draw_charts(folder.path(), {chart}) == "");
  const std::string svg = read_file(folder.path() + "/gap.svg");
  CHECK(points_drawn(svg, "gap", false) == 4);
  CHECK(points_drawn(svg, "one", true) == 1);
  // Where all points have one x, the axis still has a width.
  chart.panels.erase(chart.panels.begin());
  CHECK(gnuplot_script(chart).find("set xrange [0:2]\n") != std::string::npos);
}

TEST_CASE("labels can't break a script, nor can a locale with a decimal comma") {
  Chart chart;
  chart.name = "odd";
  chart.title = "a \"title\" with \\n";
  chart.panels.push_back({"", {{"it's $x \"y\"\n`ls`", {{0.5, 1.5}, {1.5, std::nan("")}, {2.5, 3.25}}, 0, false}}});
  const char* before = std::setlocale(LC_ALL, nullptr);
  const std::string kept = before != nullptr ? before : "C";
  std::setlocale(LC_ALL, "de_DE.UTF-8");
  const std::string script = gnuplot_script(chart);
  std::setlocale(LC_ALL, kept.c_str());
  CHECK(script.find("0.5 1.5\n\n2.5 3.25\n") != std::string::npos);
  CHECK(script.find("\"a \\\"title\\\" with \\\\n\"") != std::string::npos);
  const TemporaryFolder folder;
  CHECK(draw_charts(folder.path(), {chart}) == "");
  CHECK(std::filesystem::exists(folder.path() + "/odd.svg"));
}

TEST_CASE("what can't be drawn is said") {
  const TemporaryFolder folder;
  Chart empty;
  empty.name = "empty";
  empty.log_y = true;
  empty.panels.push_back({"", {{"", {{1, 0}, {2, -1}}, 0, true}}});
  CHECK(!has_points(empty));
  CHECK_THROWS_WITH_AS(gnuplot_script(empty), "[chart] empty has no point to draw", ValueError);
  CHECK(draw_charts(folder.path() + "/none", {empty}) == "there is nothing to draw yet");
  empty.log_y = false;
  empty.name = "../escape";
  CHECK_THROWS_WITH_AS(gnuplot_script(empty), "[chart] '../escape' is no name of a file", ValueError);
  write_file_atomically(folder.path() + "/file", "");
  empty.name = "fine";
  CHECK_THROWS_AS(draw_charts(folder.path() + "/file/below", {empty}), IoError);
}

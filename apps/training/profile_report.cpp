#include "apps/training/profile_report.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "engine/format.h"

namespace polygrad {

namespace {

// Rows added up under a title of our choice.
struct Line {
  std::string title, phase;
  std::int64_t calls = 0;
  double seconds = 0, product_seconds = 0, operations = 0, bytes = 0;
};

template <class Title>
std::vector<Line> grouped(const std::vector<ProfileRow>& rows, Title title) {
  std::vector<Line> lines;
  std::map<std::pair<std::string, std::string>, std::size_t> places;
  for (const ProfileRow& row : rows) {
    const std::string name = title(row);
    const auto [place, fresh] = places.try_emplace({row.phase, name}, lines.size());
    if (fresh) lines.push_back({name, row.phase});
    Line& line = lines[place->second];
    line.calls += row.calls;
    line.seconds += 1e-9 * static_cast<double>(row.nanoseconds);
    line.product_seconds += 1e-9 * static_cast<double>(row.product_nanoseconds);
    line.operations += row.operations;
    line.bytes += row.bytes;
  }
  std::stable_sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) { return a.seconds > b.seconds; });
  return lines;
}

std::string text_of(const Line& line, double total, const ProfileScale& scale) {
  const double steps = static_cast<double>(scale.steps);
  std::string text =
      format("{:<26} {:<10} {:>7.0f} {:>9.2f} {:>6.1f}", line.title, line.phase,
             static_cast<double>(line.calls) / steps, 1e3 * line.seconds / steps, 100 * line.seconds / total);
  if (line.operations > 0) {
    const double rate = 1e-9 * line.operations / line.seconds;
    text += format(" {:>8.1f}", rate);
    text += scale.ceiling_gflops > 0 ? format(" {:>8.2f}", rate / scale.ceiling_gflops) : format(" {:>8}", "");
    const double within = line.product_seconds / (scale.threads * line.seconds);
    text += format(" {:>9.2f} {:>9.2f}", within, scale.ceiling_gflops > 0 ? rate / within / scale.ceiling_gflops : 0.0);
  } else if (line.bytes > 0) {
    text += format(" {:>8} {:>8} {:>9} {:>9} {:>6.1f}", "", "", "", "", 1e-9 * line.bytes / line.seconds);
  }
  return text + "\n";
}

std::string table(const char* what, const std::vector<Line>& lines, const ProfileScale& scale) {
  double total = 0;
  for (const Line& line : lines) total += line.seconds;
  std::string text = format("{:<26} {:<10} {:>7} {:>9} {:>6} {:>8} {:>8} {:>9} {:>9} {:>6}\n", what, "phase", "calls",
                            "ms", "%", "GFLOP/s", "ceiling", "products", "their", "GB/s");
  Line sum{"all", ""};
  std::vector<Line> phases;
  for (const Line& line : lines) {
    text += text_of(line, total, scale);
    auto phase = std::find_if(phases.begin(), phases.end(), [&](const Line& p) { return p.phase == line.phase; });
    if (phase == phases.end()) phase = phases.insert(phases.end(), {"all", line.phase});
    for (Line* to : {&*phase, &sum}) {
      to->calls += line.calls;
      to->seconds += line.seconds;
      to->product_seconds += line.product_seconds;
      to->operations += line.operations;
    }
  }
  for (const Line& phase : phases) text += text_of(phase, total, scale);
  return text + text_of(sum, total, scale);
}

// "blocks.11.mlp.fc1" as "blocks.*.mlp.fc1".
std::string layer_kind(const std::string& path) {
  std::string kind;
  std::size_t begin = 0;
  while (begin <= path.size()) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c); });
    kind += (kind.empty() ? "" : ".") + (number ? "*" : part);
    begin = end + 1;
  }
  return kind;
}

}  // namespace

std::string profile_by_op(const std::vector<ProfileRow>& rows, const ProfileScale& scale) {
  return table("op", grouped(rows, [](const ProfileRow& row) { return row.op; }), scale);
}

std::string profile_by_module(const std::vector<ProfileRow>& rows, const ProfileScale& scale) {
  return table("module",
               grouped(rows, [](const ProfileRow& row) { return row.path.empty() ? "-" : layer_kind(row.path); }),
               scale);
}

}  // namespace polygrad

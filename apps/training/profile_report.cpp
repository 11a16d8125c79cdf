#include "apps/training/profile_report.h"

#include <algorithm>
#include <map>

#include "engine/format.h"

namespace polygrad {

namespace {

constexpr double kSmall = 1e-3;  // of the whole time: a line of its own from here on

// Rows added up under one title.
struct Line {
  std::string title, phase;
  double calls = 0, seconds = 0, parallel_seconds = 0, product_seconds = 0, operations = 0, bytes = 0;

  void add(const Line& other) {
    calls += other.calls;
    seconds += other.seconds;
    parallel_seconds += other.parallel_seconds;
    product_seconds += other.product_seconds;
    operations += other.operations;
    bytes += other.bytes;
  }
};

Line line_of(std::string title, const ProfileRow& row) {
  return {std::move(title),
          row.phase,
          static_cast<double>(row.calls),
          1e-9 * static_cast<double>(row.nanoseconds),
          1e-9 * static_cast<double>(row.parallel_nanoseconds),
          1e-9 * static_cast<double>(row.product_nanoseconds),
          row.operations,
          row.bytes};
}

// The lines added up by title and phase, the longest first.
std::vector<Line> grouped(const std::vector<Line>& lines) {
  std::vector<Line> groups;
  std::map<std::pair<std::string, std::string>, std::size_t> places;
  for (const Line& line : lines) {
    const auto [place, fresh] = places.try_emplace({line.title, line.phase}, groups.size());
    if (fresh) groups.push_back({line.title, line.phase});
    groups[place->second].add(line);
  }
  std::stable_sort(groups.begin(), groups.end(), [](const Line& a, const Line& b) { return a.seconds > b.seconds; });
  return groups;
}

class Table {
 public:
  Table(const char* title, std::vector<Line> lines, const ProfileScale& scale) : scale_(scale) {
    for (const Line& line : lines) total_ += line.seconds;
    text_ = format("{:<24} {:<9} {:>6} {:>9} {:>7} {:>8} {:>8} {:>9} {:>7} {:>6}\n", title, "phase", "calls", "ms",
                   "share", "GFLOP/s", "ceiling", "products", "idle", "GB/s");
    std::vector<Line> phases;
    Line small{"all others", ""}, sum{"sum", ""};
    for (const Line& line : lines) {
      // Waiting for data has a line however short it was: whoever profiles asks whether it is.
      if (line.seconds >= kSmall * total_ || line.phase == "data") {
        add(line);
      } else {
        small.add(line);
        small.bytes = 0;  // a rate of so many different things says nothing
      }
      phases.push_back(line);
      phases.back().title = "sum";
      phases.back().bytes = 0;
      sum.add(phases.back());
    }
    if (small.calls > 0) add(small);
    text_ += "\n";
    for (const Line& phase : grouped(phases)) add(phase);
    add(sum);
  }

  const std::string& text() const { return text_; }

 private:
  void add(const Line& line) {
    const double steps = static_cast<double>(scale_.steps), thread_seconds = scale_.threads * line.seconds;
    std::string text = format("{:<24} {:<9} {:>6.0f} {:>9.2f} {:>7}", line.title, line.phase, line.calls / steps,
                              1e3 * line.seconds / steps, percent(line.seconds, total_));
    if (line.operations > 0) {
      const double rate = 1e-9 * line.operations / line.seconds;
      text += format(" {:>8.1f} {:>8} {:>9}", rate,
                     scale_.ceiling_gflops > 0 ? format("{:.2f}", rate / scale_.ceiling_gflops) : "",
                     percent(line.product_seconds, thread_seconds));
    } else {
      text += format(" {:>8} {:>8} {:>9}", "", "", "");
    }
    text += format(" {:>7}", percent(thread_seconds - line.parallel_seconds, thread_seconds));
    if (line.operations == 0 && line.bytes > 0) text += format(" {:>6.1f}", 1e-9 * line.bytes / line.seconds);
    text_ += text + "\n";
  }

  static std::string percent(double part, double whole) {
    return whole > 0 ? format("{:.1f} %", 100 * std::max(0.0, part) / whole) : "";
  }

  const ProfileScale& scale_;
  double total_ = 0;
  std::string text_;
};

template <class Title>
std::string table(const char* header, const std::vector<ProfileRow>& rows, const ProfileScale& scale, Title title) {
  std::vector<Line> lines;
  for (const ProfileRow& row : rows) lines.push_back(line_of(title(row), row));
  return Table(header, grouped(lines), scale).text();
}

// "blocks.11.mlp.fc1" as "blocks.*.mlp.fc1".
std::string layer_kind(const std::string& path) {
  std::string kind;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    kind += (begin == 0 ? "" : ".") + (number ? "*" : part);
    begin = end + 1;
  }
  return kind;
}

}  // namespace

std::string profile_by_op(const std::vector<ProfileRow>& rows, const ProfileScale& scale) {
  return table("op", rows, scale, [](const ProfileRow& row) { return row.op; });
}

std::string profile_by_module(const std::vector<ProfileRow>& rows, const ProfileScale& scale) {
  return table("module", rows, scale,
               [](const ProfileRow& row) { return row.path.empty() ? "(outside)" : layer_kind(row.path); });
}

std::string profile_legend(const ProfileScale& scale) {
  std::string text =
      "calls, ms  of one step; the sums are the time that passed\n"
      "GFLOP/s    of the products as they were computed, recomputation included\n";
  if (scale.ceiling_gflops > 0) {
    text += format("ceiling    their part of {:.0f} GFLOP/s: a product of two 2048 x 2048 matrices at the same time\n",
                   scale.ceiling_gflops);
  }
  return text + format(
                    "products   part of the time of {} threads inside products; idle: part of it without work\n"
                    "GB/s       of operands and results, where there are no products\n",
                    scale.threads);
}

}  // namespace polygrad

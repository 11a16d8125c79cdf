#include "apps/training/metrics_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <iterator>
#include <limits>
#include <system_error>
#include <utility>

#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"
#include "engine/log.h"

namespace polygrad {

namespace {

constexpr std::size_t kMaxLogBytes = std::size_t{1} << 32;

// Columns of metrics.csv; a row leaves those empty that it does not have, and its other keys out.
constexpr const char* kColumns[] = {"event",     "split",     "step",   "epoch", "loss",          "lr",
                                    "grad_norm", "top1",      "top5",   "count", "samples_per_s", "data_wait",
                                    "status",    "best_top1", "seconds"};
constexpr const char* kNormsHeader =
    "step,epoch,layer,head,attention,jacobian_s,jacobian_s_sq,jacobian_q,jacobian_q_sq,jacobian_k\n";

std::string csv_header() {
  std::string header;
  for (const char* column : kColumns) header += (header.empty() ? "" : ",") + std::string(column);
  return header + "\n";
}

std::string csv_line(const MetricsRow& row) {
  std::string line;
  for (const char* column : kColumns) {
    if (column != kColumns[0]) line += ',';
    const JsonValue* value = row.json().find(column);
    if (value == nullptr || value->is_null()) continue;
    line += value->kind() == JsonValue::Kind::text ? value->as_text() : value->dump();
  }
  return line + "\n";
}

std::string csv_number(double value) { return std::isfinite(value) ? json_number(value) : ""; }

// Each complete line, without its end; what follows the last line end is a cut line and left out.
std::vector<std::string_view> complete_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (true) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return lines;
    lines.push_back(text.substr(0, end));
    text = text.substr(end + 1);
  }
}

std::vector<MetricsRow> parse_rows(std::string_view text, const std::string& path) {
  std::vector<MetricsRow> rows;
  for (const std::string_view line : complete_lines(text)) {
    try {
      rows.emplace_back(parse_json(line, path));
    } catch (const Error& error) {
      log_message(LogLevel::warning, format("a damaged line of {} is left out: {}", path, error.what()));
    }
  }
  return rows;
}

std::string read_or_empty(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0 ? read_file(path, kMaxLogBytes) : std::string();
}

// The look at the test images belongs to the end of a run: one that goes on takes it again then.
bool is_test_result(const MetricsRow& row) {
  const JsonValue* split = row.json().find("split");
  return row.event() == "eval" && split != nullptr && *split == JsonValue::text("test");
}

// The lines of norms.csv up to `step`; its cut or foreign lines are left out.
std::string kept_norms(std::string_view text, std::int64_t step) {
  std::string kept = kNormsHeader;
  for (const std::string_view line : complete_lines(text)) {
    char* end = nullptr;
    const std::string first(line.substr(0, line.find(',')));
    const long long its_step = std::strtoll(first.c_str(), &end, 10);
    if (end == first.c_str() || *end != '\0' || its_step > step) continue;
    kept.append(line).append("\n");
  }
  return kept;
}

}  // namespace

MetricsRow::MetricsRow(std::string_view event) : json_(JsonValue::object()) { add("event", event); }

MetricsRow::MetricsRow(JsonValue object) : json_(std::move(object)) {
  const JsonValue* event = json_.kind() == JsonValue::Kind::object ? json_.find("event") : nullptr;
  if (event == nullptr || event->kind() != JsonValue::Kind::text) throw ValueError("[metrics] a row without its event");
}

MetricsRow& MetricsRow::add(std::string_view key, double value) {
  json_.set(key, JsonValue::real(value));
  return *this;
}

MetricsRow& MetricsRow::add(std::string_view key, std::int64_t value) {
  json_.set(key, JsonValue::integer(value));
  return *this;
}

MetricsRow& MetricsRow::add(std::string_view key, std::uint64_t value) {
  json_.set(key, JsonValue::unsigned_integer(value));
  return *this;
}

MetricsRow& MetricsRow::add(std::string_view key, bool value) {
  json_.set(key, JsonValue::boolean(value));
  return *this;
}

MetricsRow& MetricsRow::add(std::string_view key, std::string_view value) {
  json_.set(key, JsonValue::text(std::string(value)));
  return *this;
}

std::string MetricsRow::event() const { return json_.find("event")->as_text(); }

std::int64_t MetricsRow::step() const {
  const JsonValue* value = json_.find("step");
  return value != nullptr && value->is_number() ? value->as_int() : -1;
}

double MetricsRow::number(std::string_view key) const {
  const JsonValue* value = json_.find(key);
  return value != nullptr && value->is_number() ? value->as_double() : std::numeric_limits<double>::quiet_NaN();
}

MetricsLog::MetricsLog(const std::string& folder, std::optional<std::int64_t> resumed_step,
                       const std::vector<std::string>& redone) {
  jsonl_.path = folder + "/metrics.jsonl";
  csv_.path = folder + "/metrics.csv";
  norms_.path = folder + "/norms.csv";

  std::string jsonl, csv = csv_header(), norms = kNormsHeader;
  if (resumed_step) {
    const auto is_redone = [&](const std::string& event) {
      return std::find(redone.begin(), redone.end(), event) != redone.end();
    };
    for (const MetricsRow& row : parse_rows(read_or_empty(jsonl_.path), jsonl_.path)) {
      if (row.step() > *resumed_step || is_test_result(row)) continue;
      if (row.step() == *resumed_step && is_redone(row.event())) continue;
      jsonl += row.json().dump() + "\n";
      if (row.event() != "norms") csv += csv_line(row);
    }
    norms = kept_norms(read_or_empty(norms_.path), is_redone("norms") ? *resumed_step - 1 : *resumed_step);
  }
  try {
    for (auto [file, content] : {std::pair(&jsonl_, &jsonl), std::pair(&csv_, &csv), std::pair(&norms_, &norms)}) {
      write_file_atomically(file->path, *content);
      file->descriptor = ::open(file->path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
      if (file->descriptor < 0) {
        throw IoError(format("[metrics] can't open {}: {}", file->path, std::generic_category().message(errno)));
      }
      file->good_size = static_cast<std::int64_t>(content->size());
    }
  } catch (...) {
    close();
    throw;
  }
}

MetricsLog::~MetricsLog() { close(); }

MetricsLog::MetricsLog(MetricsLog&& other) noexcept { *this = std::move(other); }

MetricsLog& MetricsLog::operator=(MetricsLog&& other) noexcept {
  std::swap(jsonl_, other.jsonl_);
  std::swap(csv_, other.csv_);
  std::swap(norms_, other.norms_);
  std::swap(trouble_, other.trouble_);
  return *this;
}

void MetricsLog::close() {
  for (File* file : {&jsonl_, &csv_, &norms_}) {
    if (file->descriptor >= 0) {
      if (!file->waiting.empty()) append(*file, "");  // the last chance of rows that found no room
      ::close(file->descriptor);
    }
    file->descriptor = -1;
  }
}

void MetricsLog::write(const MetricsRow& row) {
  append(jsonl_, row.json().dump() + "\n");
  if (row.event() != "norms") append(csv_, csv_line(row));
}

void MetricsLog::write_norms(std::int64_t step, double epoch, std::int64_t layer, const std::vector<HeadNorms>& heads) {
  std::string lines;
  for (std::size_t head = 0; head < heads.size(); ++head) {
    const HeadNorms& norms = heads[head];
    lines += format("{},{},{},{}", step, csv_number(epoch), layer, head);
    for (const double value : {norms.attention, norms.jacobian_s, norms.jacobian_s_sq, norms.jacobian_q,
                               norms.jacobian_q_sq, norms.jacobian_k}) {
      lines += "," + csv_number(value);
    }
    lines += "\n";
  }
  append(norms_, lines);
}

void MetricsLog::append(File& file, const std::string& line) {
  if (file.descriptor < 0) return;
  file.waiting += line;
  std::size_t done = 0;
  while (done < file.waiting.size()) {
    const ssize_t wrote = ::write(file.descriptor, file.waiting.data() + done, file.waiting.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const int reason = wrote < 0 ? errno : ENOSPC;
      // No half line stays behind, and all that waits is tried again with the next row. (Where even that fails, the
      // half line stands until the next resume, which leaves it out.)
      [[maybe_unused]] const int ignored = ::ftruncate(file.descriptor, file.good_size);
      const std::string trouble = format("{}: {}", file.path, std::generic_category().message(reason));
      if (trouble_.empty())  // once for all three files
        log_message(LogLevel::warning, format("[metrics] {}; rows wait in memory until there is room", trouble));
      trouble_ = trouble;
      return;
    }
    done += static_cast<std::size_t>(wrote);
  }
  file.good_size += static_cast<std::int64_t>(file.waiting.size());
  file.waiting.clear();
  if (jsonl_.waiting.empty() && csv_.waiting.empty() && norms_.waiting.empty()) trouble_.clear();
}

void MetricsLog::sync() {
  for (File* file : {&jsonl_, &csv_, &norms_}) {
    if (file->descriptor < 0) continue;
    if (!file->waiting.empty()) append(*file, "");
    ::fdatasync(file->descriptor);
  }
}

std::vector<MetricsRow> read_metrics(const std::string& path) {
  return parse_rows(read_file(path, kMaxLogBytes), path);
}

}  // namespace polygrad

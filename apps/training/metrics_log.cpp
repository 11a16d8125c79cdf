#include "apps/training/metrics_log.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
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
                       const std::vector<std::string>& redone, bool tensorboard) {
  const std::string jsonl_path = folder + "/metrics.jsonl", norms_path = folder + "/norms.csv";
  std::string jsonl, csv = csv_header(), norms = kNormsHeader;
  std::vector<MetricsRow> kept;
  if (resumed_step) {
    const auto is_redone = [&](const std::string& event) {
      return std::find(redone.begin(), redone.end(), event) != redone.end();
    };
    for (MetricsRow& row : parse_rows(read_or_empty(jsonl_path), jsonl_path)) {
      if (row.step() > *resumed_step || is_test_result(row)) continue;
      if (row.step() == *resumed_step && is_redone(row.event())) continue;
      kept.push_back(std::move(row));
    }
    norms = kept_norms(read_or_empty(norms_path), is_redone("norms") ? *resumed_step - 1 : *resumed_step);
  }
  for (const MetricsRow& row : kept) {
    jsonl += row.json().dump() + "\n";
    if (row.event() != "norms") csv += csv_line(row);
  }
  jsonl_ = AppendFile(jsonl_path, jsonl);
  csv_ = AppendFile(folder + "/metrics.csv", csv);
  norms_ = AppendFile(norms_path, norms);
  if (!tensorboard) return;
  tensorboard_ = TensorBoardLog(folder, resumed_step, redone);
  if (!tensorboard_.begins()) return;
  for (const MetricsRow& row : kept) tensorboard_.write(row);  // the run did not write it before
}

void MetricsLog::write(const MetricsRow& row) {
  jsonl_.append(row.json().dump() + "\n");
  if (row.event() != "norms") csv_.append(csv_line(row));
  tensorboard_.write(row);
  tell_trouble();
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
  norms_.append(lines);
  tell_trouble();
}

void MetricsLog::tell_trouble() {
  const std::string now = trouble();
  if (!now.empty() && !told_)  // once for all files
    log_message(LogLevel::warning, format("[metrics] {}; rows wait in memory until there is room", now));
  told_ = !now.empty();
}

void MetricsLog::sync() {
  for (AppendFile* file : {&jsonl_, &csv_, &norms_}) file->sync();
  tensorboard_.sync();
}

std::string MetricsLog::trouble() const {
  for (const std::string* trouble : {&jsonl_.trouble(), &csv_.trouble(), &norms_.trouble(), &tensorboard_.trouble()}) {
    if (!trouble->empty()) return *trouble;
  }
  return "";
}

std::vector<MetricsRow> read_metrics(const std::string& path) {
  return parse_rows(read_file(path, kMaxLogBytes), path);
}

}  // namespace polygrad

#include "apps/training/text_table.h"

#include <algorithm>
#include <cstddef>

namespace polygrad {

namespace {

std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string on_one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r' || c == '\t'; }, ' ');
  return text;
}

std::vector<std::size_t> column_widths(const TextTable& table) {
  std::vector<std::size_t> widths(table.empty() ? 0 : table.front().size(), 0);
  for (const std::vector<std::string>& row : table) {
    for (std::size_t i = 0; i < row.size(); ++i) widths.at(i) = std::max(widths.at(i), width(row[i]));
  }
  return widths;
}

std::string padded(const std::string& text, std::size_t to) { return text + std::string(to - width(text), ' '); }

}  // namespace

std::string aligned_text(const TextTable& table) {
  const std::vector<std::size_t> widths = column_widths(table);
  std::string text;
  for (const std::vector<std::string>& row : table) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += (i > 0 ? "  " : "") + padded(on_one_line(row[i]), widths[i]);
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string markdown_table(const TextTable& table) {
  TextTable escaped = table;
  for (std::vector<std::string>& row : escaped) {
    for (std::string& field : row) {
      std::string safe;
      for (const char c : on_one_line(field)) safe += c == '|' ? std::string("\\|") : std::string(1, c);
      field = safe;
    }
  }
  std::vector<std::size_t> widths = column_widths(escaped);
  for (std::size_t& its_width : widths) its_width = std::max<std::size_t>(its_width, 3);
  std::string text;
  for (std::size_t r = 0; r < escaped.size(); ++r) {
    for (std::size_t i = 0; i < widths.size(); ++i) text += "| " + padded(escaped[r][i], widths[i]) + " ";
    text += "|\n";
    if (r > 0) continue;
    for (const std::size_t its_width : widths) text += "|" + std::string(its_width + 2, '-');
    text += "|\n";
  }
  return text;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    quoted += c;
    if (c == '"') quoted += c;
  }
  return quoted + "\"";
}

}  // namespace polygrad

// Tables as text: aligned columns for people, Markdown, and fields of CSV. Internal: not installed.
//
// Where this stands: above nothing; the tables of a sweep and the list of runs are made with it.
#pragma once

#include <string>
#include <vector>

namespace polygrad {

// A row for each line; all rows have as many fields as the first one, which is the heading.
using TextTable = std::vector<std::vector<std::string>>;

// Columns padded to one width, two blanks between them, no blanks at a line's end. Widths count UTF-8 characters; line
// breaks within a field become blanks.
std::string aligned_text(const TextTable& table);
// A Markdown table whose source is aligned too.
std::string markdown_table(const TextTable& table);

// The text as one field of a CSV line: in quotes where it must be.
std::string csv_field(const std::string& text);

}  // namespace polygrad

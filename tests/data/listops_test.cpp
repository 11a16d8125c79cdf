// ListOps: both layouts, the vocabulary, malformed files; the generator's statistics, and its values recomputed.
#include "data/listops.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "data/line_reader.h"
#include "data/listops_generator.h"
#include "engine/error.h"
#include "engine/log.h"
#include "engine/parallel.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

// An evaluator of expressions that shares nothing with the generator: a stack machine over the text's words.
int value_of(const std::string& source) {
  std::vector<std::vector<int>> stack;
  std::vector<std::string> operations;
  int result = -1;
  const auto give = [&](int value) {
    if (stack.empty()) {
      REQUIRE(result == -1);  // one expression, not two
      result = value;
    } else {
      stack.back().push_back(value);
    }
  };
  for (std::size_t at = 0; at < source.size();) {
    const std::size_t end = std::min(source.find(' ', at), source.size());
    const std::string word = source.substr(at, end - at);
    at = end + 1;
    if (word == "(" || word == ")" || word.empty()) continue;
    if (word[0] == '[') {
      operations.push_back(word);
      stack.emplace_back();
    } else if (word == "]") {
      std::vector<int> values = stack.back();
      const std::string operation = operations.back();
      stack.pop_back();
      operations.pop_back();
      std::sort(values.begin(), values.end());
      const std::size_t n = values.size();
      REQUIRE(n > 0);
      int value = 0;
      if (operation == "[MIN") value = values.front();
      if (operation == "[MAX") value = values.back();
      if (operation == "[MED") value = (values[(n - 1) / 2] + values[n / 2]) / 2;  // the mean of the middle, truncated
      if (operation == "[SM") {
        for (const int x : values) value = (value + x) % 10;
      }
      give(value);
    } else {
      REQUIRE(word.size() == 1);
      give(word[0] - '0');
    }
  }
  REQUIRE(stack.empty());
  return result;
}

std::vector<std::int64_t> ids_of(const Dataset& data, std::int64_t index) {
  Generator unused;
  return data.get(index, unused).tokens.to_vector<std::int64_t>();
}

std::string failure_of(const std::string& content) {
  const TemporaryFolder folder;
  write_bytes(folder / "f.tsv", content);
  try {
    const ListOpsDataset data(folder / "f.tsv", 2048);
  } catch (const DataError& error) {
    const std::string text = error.what();
    const std::size_t at = text.find(folder.path());
    REQUIRE(at != std::string::npos);  // the file is named
    return text.substr(0, at) + text.substr(at + folder.path().size() + 1);
  }
  return "";
}

struct Row {
  std::string source;
  int target;
};

std::vector<Row> rows_of(const std::string& path, bool source_first = true) {
  LineReader lines(path);
  std::string_view line;
  std::vector<Row> rows;
  REQUIRE(lines.next(line));
  while (lines.next(line)) {
    const auto columns = split_tabs(line);
    REQUIRE(columns.size() == 2);
    rows.push_back({std::string(columns[source_first ? 0 : 1]), columns[source_first ? 1 : 0][0] - '0'});
  }
  return rows;
}

}  // namespace

TEST_CASE("both layouts give the same samples; brackets are dropped, unknown words are counted") {
  const TemporaryFolder folder;
  write_bytes(folder / "lra.tsv", "Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n( ( [SM 5 ) FOO ) ]\t5\n");
  write_bytes(folder / "own.tsv", "Target\tSource\r\n9\t( ( ( [MAX 2 ) 9 ) ] )\r\n5\t( ( [SM 5 ) FOO ) ]");
  const ListOpsDataset lra(folder / "lra.tsv", 2048), own(folder / "own.tsv", 2048);
  for (const ListOpsDataset* data : {&lra, &own}) {
    CHECK(data->size() == 2);
    CHECK(ids_of(*data, 0) == std::vector<std::int64_t>{12, 3, 10, 15});
    CHECK(data->label(0) == 9);
    CHECK(ids_of(*data, 1) == std::vector<std::int64_t>{14, 6, 16, 15});
    CHECK(data->token_counts(1).unknown == 1);
    CHECK(data->token_counts(0).unknown == 0);
  }
  CHECK(lra.fingerprint() == own.fingerprint());
  CHECK(lra.describe(1) == folder / "lra.tsv:3");
  CHECK_THROWS_AS(lra.describe(2), IndexError);
}

TEST_CASE("expressions whose brackets do not match are read as they are, and said") {
  const TemporaryFolder folder;
  // The third is cut off, the fourth has no beginning; where a word is unknown nobody can tell.
  write_bytes(folder / "f.tsv",
              "Target\tSource\n4\t[MIN 4 5 ]\n5\t5\n4\t( ( [MIN 4 ) [MAX 5 6 ]\n4\t4 ] [MAX 5\n4\t[min 4 5 ]\n");
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel, std::string_view text) { warnings.emplace_back(text); });
  const ListOpsDataset data(folder / "f.tsv", 2048);
  set_log_sink({});
  CHECK(ids_of(data, 2) == std::vector<std::int64_t>{11, 5, 12, 6, 7, 15});
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("f.tsv:4: 2 expressions whose brackets") != std::string::npos);
}

TEST_CASE("the vocabulary is fixed: whatever stands in the file, a word has its id") {
  std::int64_t unknown = 0;
  CHECK(listops_ids("0 1 9 [MIN [MAX [MED [SM ] [min 10 x", &unknown) ==
        std::string("\x01\x02\x0A\x0B\x0C\x0D\x0E\x0F\x10\x10\x10"));
  CHECK(unknown == 3);
  CHECK(listops_words().size() == 15);
  CHECK(listops_ids("(5)(6)", &unknown) == std::string("\x06\x07"));  // not glued together
}

TEST_CASE("longer samples are cut, and both lengths are known") {
  const TemporaryFolder folder;
  write_bytes(folder / "f.tsv", "Source\tTarget\n[MAX 1 2 3 4 ]\t4\n");
  const ListOpsDataset data(folder / "f.tsv", 3);
  CHECK(ids_of(data, 0) == std::vector<std::int64_t>{12, 2, 3});
  CHECK(data.token_counts(0).length == 6);
  CHECK(data.token_counts(0).kept == 3);
  const std::string report = describe_tokens(data, "train");
  CHECK(report.find("train") == 0);
  CHECK(report.find("cut: 1 (100.0 %)") != std::string::npos);
  CHECK(report.find("unknown tokens: 0") != std::string::npos);
}

TEST_CASE("malformed files: the line is named") {
  CHECK(failure_of("").find("[listops] f.tsv:1: expected the header") == 0);
  CHECK(failure_of("[MAX 1 2 ]\t2\n").find("[listops] f.tsv:1: expected the header") == 0);
  CHECK(failure_of("Source\tTarget\n").find("[listops] f.tsv: no rows") == 0);
  CHECK(failure_of("Source\tTarget\n[MAX 1 ]\t1\n[MAX 1 ]\n").find("[listops] f.tsv:3: 1 columns") == 0);
  CHECK(failure_of("Source\tTarget\n[MAX 1 ]\t1\t1\n").find("[listops] f.tsv:2: 3 columns") == 0);
  CHECK(failure_of("Source\tTarget\n[MAX 1 ]\t10\n").find("[listops] f.tsv:2: target '10'") == 0);
  CHECK(failure_of("Source\tTarget\n[MAX 1 ]\t\n").find("[listops] f.tsv:2: target ''") == 0);
  CHECK(failure_of("Source\tTarget\n\t1\n").find("[listops] f.tsv:2: the expression is empty") == 0);
  CHECK(failure_of("Source\tTarget\n\n").find("[listops] f.tsv:2: 1 columns") == 0);
  CHECK(failure_of("Source\tTarget\n( )\t1\n").find("[listops] f.tsv:2: the expression is empty") == 0);
}

TEST_CASE("the 10,000 real rows are read whole, and each evaluates to its target") {
  const char* data = std::getenv("POLYGRAD_TEST_DATA");
  const std::string base = std::string(data ? data : "") + "/lra-samples/";
  if (!data || !std::filesystem::exists(base)) return skip("sample data missing: lra-samples in POLYGRAD_TEST_DATA");
  const ListOpsDataset original(base + "listops-original/test_d20s.tsv", 2048);
  CHECK(original.size() == 10000);
  const std::vector<Row> rows = rows_of(base + "listops-original/test_d20s.tsv", false);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(value_of(rows[i].source) == rows[i].target);
    CHECK(original.label(static_cast<std::int64_t>(i)) == rows[i].target);
    CHECK(original.token_counts(static_cast<std::int64_t>(i)).unknown == 0);
  }
  std::int64_t total = 0;
  for (const char* part : {"train", "val", "test"}) {
    total += ListOpsDataset(base + "listops-lra-format/basic_" + part + ".tsv", 2048).size();
  }
  CHECK(total == 9999);
}

TEST_CASE("an expression's text is nested pairs, and reads back") {
  const std::string ids("\x0C\x03\x0B\x09\x05\x0F\x02\x0F", 8);  // [MAX 2 [MIN 8 4 ] 1 ]
  const std::string text = listops_text(ids);
  CHECK(text == "( ( ( ( [MAX 2 ) ( ( ( [MIN 8 ) 4 ) ] ) ) 1 ) ] )");
  std::int64_t unknown = 0;
  CHECK(listops_ids(text, &unknown) == ids);
  CHECK(value_of(text) == 4);
  for (const std::string& broken : {std::string(), std::string("\x0C\x03"), std::string("\x0F"),
                                    std::string("\x03\x04"), std::string("\x0C\x10\x0F"), ids + ids}) {
    CHECK_THROWS_AS(listops_text(broken), ValueError);
  }
}

TEST_CASE("generated files: unique trees of the right lengths, values, shares and splits") {
  const TemporaryFolder folder;
  constexpr std::int64_t kCount = 2000;
  write_listops(folder.path(), kCount, 7);
  std::set<std::string> seen;
  std::map<std::int64_t, double> labels, words;
  std::int64_t operators = 0, tokens = 0, shorter = 0, longer = 0;
  const std::pair<const char*, std::size_t> parts[] = {{"train", 1920}, {"val", 40}, {"test", 40}};
  for (const auto& [name, size] : parts) {
    const std::vector<Row> rows = rows_of(folder / (std::string("basic_") + name + ".tsv"));
    CHECK(rows.size() == size);
    for (const Row& row : rows) {
      CHECK(seen.insert(row.source).second);
      CHECK(value_of(row.source) == row.target);
      labels[row.target] += 1.0 / kCount;
      std::int64_t unknown = 0;
      const std::string ids = listops_ids(row.source, &unknown);
      CHECK(unknown == 0);
      const auto length = static_cast<std::int64_t>(ids.size());
      CHECK((length > 500 && length < 2000));
      shorter += length < 583;
      longer += length > 1641;
      tokens += length;
      for (const char id : ids) {
        words[id] += 1;
        operators += id >= kListOpsMin && id < kListOpsEnd;
      }
    }
  }
  // Measured on 4,000 trees of another program: mean 1043, deciles 583 and 1641, 148 operators a tree.
  CHECK(static_cast<double>(tokens) / kCount == doctest::Approx(1043).epsilon(0.03));
  CHECK(static_cast<double>(operators) / kCount == doctest::Approx(148).epsilon(0.03));
  CHECK(static_cast<double>(shorter) / kCount == doctest::Approx(0.1).epsilon(0.25));
  CHECK(static_cast<double>(longer) / kCount == doctest::Approx(0.1).epsilon(0.25));
  const double shares[] = {.166, .090, .069, .075, .095, .090, .082, .075, .087, .173};
  for (int digit = 0; digit < 10; ++digit) {
    const double deviation = std::sqrt(shares[digit] * (1 - shares[digit]) * (1.0 / kCount + 1.0 / 4000));
    CHECK(std::abs(labels[digit] - shares[digit]) < 4 * deviation);
  }
  // Each operator a quarter of the operators, each digit a tenth of the digits; an end for each operator.
  for (int id = kListOpsMin; id < kListOpsEnd; ++id) {
    CHECK(words[id] / static_cast<double>(operators) == doctest::Approx(0.25).epsilon(0.02));
  }
  CHECK(words[kListOpsEnd] == static_cast<double>(operators));
  const double digits = static_cast<double>(tokens - 2 * operators);
  for (int digit = 0; digit < 10; ++digit) CHECK(words[digit + 1] / digits == doctest::Approx(0.1).epsilon(0.02));
}

TEST_CASE("the generator: depth 10 is always reached, a twelfth of the candidates is kept") {
  std::int64_t kept = 0;
  constexpr int kCandidates = 20000;
  for (int i = 0; i < kCandidates; ++i) {
    Generator generator(derive_seed(3, static_cast<std::uint64_t>(i)));
    const auto tree = draw_listops_tree(generator);
    if (!tree) continue;
    ++kept;
    CHECK(tree->depth == 10);
    CHECK(value_of(listops_text(tree->ids)) == tree->value);
  }
  CHECK(static_cast<double>(kept) / kCandidates == doctest::Approx(0.081).epsilon(0.08));
}

TEST_CASE("one seed, one set, whatever the threads; another seed, another set") {
  const TemporaryFolder folder;
  {
    const NumThreadsGuard one(1);
    write_listops(folder / "a", 100, 3);
  }
  const NumThreadsGuard four(4);
  write_listops(folder / "b", 100, 3);
  write_listops(folder / "c", 100, 4);
  for (const char* name : {"/basic_train.tsv", "/basic_val.tsv", "/basic_test.tsv"}) {
    CHECK(read_bytes(folder / "a" + name) == read_bytes(folder / "b" + name));
    CHECK(read_bytes(folder / "a" + name) != read_bytes(folder / "c" + name));
  }
  CHECK_THROWS_AS(write_listops(folder / "d", 49, 3), ValueError);
}

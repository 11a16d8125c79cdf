// safetensors: what is written comes back bit by bit, odd files are read, hostile ones are refused.
#include "engine/safetensors.h"

#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <sstream>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/generator.h"
#include "tests/support/isolation.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using doctest::Contains;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

namespace {

std::string bytes_of(const Tensor& tensor) {
  const Tensor dense = tensor.contiguous();
  return {static_cast<const char*>(dense.ref().data),
          static_cast<std::size_t>(dense.numel()) * dtype_size(dense.dtype())};
}

template <class T, class Bits>
T from_bits(Bits bits) {
  static_assert(sizeof(T) == sizeof(Bits));
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// A file from its parts.
std::string make_file(const std::string& header, const std::string& data = "") {
  const std::uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  return file + header + data;
}

// What opening and loading everything says; "" where nothing is wrong.
std::string complaint(const std::string& path) {
  try {
    load_safetensors(path);
  } catch (const IoError& error) {
    return error.what();
  }
  return "";
}

constexpr const char* kOne = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
const std::string kEightBytes(8, '\0');

}  // namespace

TEST_CASE("every dtype comes back bit by bit, in the order given") {
  std::vector<Float16> half;
  std::vector<BFloat16> brain;
  for (int bits = 0; bits < 65536; ++bits) {
    half.push_back({static_cast<std::uint16_t>(bits)});
    brain.push_back({static_cast<std::uint16_t>(bits)});
  }
  const std::vector<float> singles = {0.f,
                                      -0.f,
                                      1.f,
                                      std::numeric_limits<float>::infinity(),
                                      -std::numeric_limits<float>::infinity(),
                                      from_bits<float>(0x7fc01234u),
                                      from_bits<float>(0xff812345u),
                                      from_bits<float>(1u),
                                      from_bits<float>(0x007fffffu),
                                      std::numeric_limits<float>::max()};
  const std::vector<double> doubles = {from_bits<double>(std::uint64_t{0x7ff8000000001234}),
                                       from_bits<double>(std::uint64_t{1}), -0.0, 1e308,
                                       std::numeric_limits<double>::infinity()};
  const Tensor matrix = Tensor::from_vector(std::vector<std::int32_t>{1, 2, 3, 4, 5, 6}, {2, 3});
  const NamedTensors tensors = {
      {"z", Tensor::from_vector(singles)},
      {"a.weight", Tensor::from_vector(doubles)},
      {"bool", Tensor::from_vector(std::vector<bool>{true, false, true})},
      {"half", Tensor::from_vector(half, {256, 256})},
      {"brain", Tensor::from_vector(brain, {65536})},
      {"i64", Tensor::from_vector(std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::min(), -1, 0,
                                                            std::numeric_limits<std::int64_t>::max()})},
      {"transposed", make_view(matrix, {3, 2}, {1, 3}, 0)},
      {"u8", Tensor::from_vector(std::vector<std::uint8_t>{0, 127, 255})},
      {"empty", Tensor::empty({0, 3})},
      {"scalar \"quoted\" \xC3\xBC", Tensor::from_vector(std::vector<float>{2.5f}, {})},
  };
  const TemporaryFolder folder;
  const std::string path = folder / "all.safetensors";
  save_safetensors(path, tensors, {{"format", "pt"}, {"note", "line\nbreak \xE2\x82\xAC"}});

  const SafetensorsFile file(path);
  CHECK(file.path() == path);
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}, {"note", "line\nbreak \xE2\x82\xAC"}});
  REQUIRE(file.entries().size() == tensors.size());
  const NamedTensors loaded = load_safetensors(path);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    CAPTURE(name);
    CHECK(file.contains(name));
    CHECK(file.entries()[i].name == name);
    CHECK(file.entries()[i].shape == tensor.shape());
    CHECK(loaded[i].first == name);
    CHECK(loaded[i].second.dtype() == tensor.dtype());
    CHECK(loaded[i].second.shape() == tensor.shape());
    CHECK(bytes_of(loaded[i].second) == bytes_of(tensor));
  }
  CHECK_FALSE(file.contains("nobody"));
  CHECK_THROWS_WITH_AS(file.load("nobody"), Contains("holds no tensor named 'nobody'"), IoError);

  std::uint64_t header = 0;
  std::memcpy(&header, read_bytes(path).data(), sizeof header);
  CHECK((8 + header) % 64 == 0);
  CHECK(folder.count() == 1);  // no temporary is left
}

TEST_CASE("an open file moves, and outlives its replacement") {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  save_safetensors(path, {{"x", Tensor::from_vector(std::vector<float>{1, 2})}});
  SafetensorsFile first(path);
  SafetensorsFile file(std::move(first));
  save_safetensors(path, {{"x", Tensor::from_vector(std::vector<float>{7, 8, 9})}});
  CHECK(file.load("x").to_vector<float>() == std::vector<float>{1, 2});
  file = SafetensorsFile(path);
  CHECK(file.load("x").to_vector<float>() == std::vector<float>{7, 8, 9});
}

TEST_CASE("no tensors at all") {
  const TemporaryFolder folder;
  save_safetensors(folder / "none", {});
  CHECK(load_safetensors(folder / "none").empty());
}

TEST_CASE("data at odd offsets is read correctly") {
  const TemporaryFolder folder;
  std::string header =
      R"({"byte":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"f32":{"dtype":"F32","shape":[2],"data_offsets":[1,9]},)"
      R"("f16":{"dtype":"F16","shape":[1],"data_offsets":[9,11]},"bf16":{"dtype":"BF16","shape":[1],"data_offsets":[11,13]},)"
      R"("i64":{"dtype":"I64","shape":[1],"data_offsets":[13,21]},"u16":{"dtype":"U16","shape":[2],"data_offsets":[21,25]},)"
      R"("i16":{"dtype":"I16","shape":[1],"data_offsets":[25,27]},"u32":{"dtype":"U32","shape":[1],"data_offsets":[27,31]},)"
      R"("i8":{"dtype":"I8","shape":[2],"data_offsets":[31,33]},"f64":{"dtype":"F64","shape":[1],"data_offsets":[33,41]}})";
  const float singles[2] = {1.5f, -2.25f};
  const std::uint16_t half = 0x3C00, brain = 0x3F80, words[2] = {65535, 7};
  const std::int64_t big = -9007199254740993;
  const std::int16_t small = -32768;
  const std::uint32_t wide = 4294967295u;
  const std::int8_t bytes[2] = {-128, 127};
  const double real = 0.1;
  std::string data(1, '\x2A');
  const auto append = [&](const void* what, std::size_t size) { data.append(static_cast<const char*>(what), size); };
  append(singles, 8), append(&half, 2), append(&brain, 2), append(&big, 8), append(words, 4), append(&small, 2);
  append(&wide, 4), append(bytes, 2), append(&real, 8);
  for (int padding = 0; padding < 4; ++padding) {  // each alignment of the data's start
    const std::string path = folder / "odd";
    write_bytes(path, make_file(header + std::string(static_cast<std::size_t>(padding), ' '), data));
    const SafetensorsFile file(path);
    CHECK(file.load("byte").to_vector<std::uint8_t>() == std::vector<std::uint8_t>{42});
    CHECK(file.load("f32").to_vector<float>() == std::vector<float>{1.5f, -2.25f});
    CHECK(file.load("f16").item<float>() == 1);
    CHECK(file.load("bf16").item<float>() == 1);
    CHECK(file.load("i64").item<std::int64_t>() == big);
    CHECK(file.load("u16").to_vector<std::int32_t>() == std::vector<std::int32_t>{65535, 7});
    CHECK(file.load("i16").to_vector<std::int32_t>() == std::vector<std::int32_t>{-32768});
    CHECK(file.load("u32").to_vector<std::int64_t>() == std::vector<std::int64_t>{4294967295});
    CHECK(file.load("i8").to_vector<std::int32_t>() == std::vector<std::int32_t>{-128, 127});
    CHECK(file.load("f64").item<double>() == 0.1);
    CHECK(file.entries()[5].stored_dtype == "U16");
  }
}

TEST_CASE("types without a counterpart can be listed, but not loaded") {
  const TemporaryFolder folder;
  for (const std::string type : {"F8_E4M3", "F8_E5M2", "U64", "C64"}) {
    CAPTURE(type);
    const std::string size = type[0] == 'F' ? "1" : "8";
    write_bytes(folder / "f8",
                make_file(R"({"w":{"dtype":")" + type + R"(","shape":[1],"data_offsets":[0,)" + size + "]}}",
                          std::string(type[0] == 'F' ? 1 : 8, '\x7F')));
    const SafetensorsFile file(folder / "f8");
    CHECK(file.entries()[0].stored_dtype == type);
    CHECK_THROWS_WITH_AS(file.load("w"), Contains(("tensor 'w' has dtype " + type).c_str()), IoError);
  }
}

TEST_CASE("a hostile file is refused with its reason, without a large allocation") {
  const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"dtype":")" + dtype + R"(","shape":[)" + shape + R"(],"data_offsets":[)" + offsets + "]}";
  };
  const auto one = [&](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"a":)" + tensor(dtype, shape, offsets) + "}";
  };
  const auto huge = [](std::uint64_t length) { return std::string(reinterpret_cast<const char*>(&length), 8); };
  const std::string f32 = tensor("F32", "2", "0,8");
  struct Case {
    const char* name;
    std::string bytes;
    const char* expected;
  };
  const Case cases[] = {
      {"empty", "", "0 bytes are too few"},
      {"seven bytes", "1234567", "7 bytes are too few"},
      {"length past the end", huge(9) + "{}", "runs past the end of the file"},
      {"length at the limit", huge(100'000'000) + "{}", "runs past the end of the file"},
      {"length over the limit", huge(100'000'001) + "{}", "too large"},
      {"length 2^63", huge(std::uint64_t{1} << 63) + "{}", "too large"},
      {"length 2^64 - 1", huge(~std::uint64_t{0}) + "{}", "too large"},
      {"no header", huge(0), "not valid JSON"},
      {"bad UTF-8", make_file("{\"\xC0\xAF\":1}"), "not UTF-8 at byte 2"},
      {"a surrogate", make_file("{\"\xED\xA0\x80\":1}"), "not UTF-8 at byte 2"},
      {"cut UTF-8", make_file("\xE2\x82"), "not UTF-8 at byte 0"},
      {"cut JSON", make_file(std::string(kOne, 20)), "not valid JSON"},
      {"text after the object", make_file(std::string(kOne) + "x", kEightBytes), "not valid JSON"},
      {"an array", make_file("[]"), "an array where the format has an object"},
      {"a number", make_file("7"), "a number where the format has an object"},
      {"a tensor that is a string", make_file(R"({"a":"F32"})"), "a string as the value of 'a'"},
      {"deep nesting", make_file("{\"a\":" + std::string(100'000, '[')), "an array as the value of 'a'"},
      {"deep nesting in shape", make_file(R"({"a":{"shape":)" + std::string(100'000, '[')), "an array in 'shape'"},
      {"unknown dtype", make_file(one("F33", "2", "0,8"), kEightBytes), "unknown dtype 'F33'"},
      {"unknown key", make_file(R"({"a":{"order":1}})"), "unknown key 'order'"},
      {"missing shape", make_file(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", kEightBytes),
       "expected dtype, shape"},
      {"one offset", make_file(one("F32", "2", "8"), kEightBytes), "expected dtype, shape and two data_offsets"},
      {"three offsets", make_file(one("F32", "2", "0,8,8"), kEightBytes), "more than 2 numbers"},
      {"nine dimensions", make_file(one("F32", "1,1,1,1,1,1,1,1,2", "0,8"), kEightBytes), "more than 8 numbers"},
      {"negative size", make_file(one("F32", "-2", "0,8"), kEightBytes), "a negative number in 'shape'"},
      {"fractional size", make_file(one("F32", "2.5", "0,8"), kEightBytes), "not a whole one"},
      {"size over 2^64", make_file(one("F32", "36893488147419103232", "0,8"), kEightBytes), "not a whole one"},
      {"overflow of the count", make_file(one("F32", "4294967296,4294967296", "0,8"), kEightBytes),
       "overflows 64 bits"},
      {"overflow of the bytes", make_file(one("F32", "4611686018427387904", "0,8"), kEightBytes), "overflows 64 bits"},
      {"overflow behind a zero", make_file(one("F32", "0,9223372036854775807,9223372036854775807", "0,0")),
       "overflows 64 bits"},
      {"duplicate name",
       make_file(R"({"a":)" + f32 + R"(,"a":)" + tensor("F32", "2", "8,16") + "}", std::string(16, '\0')),
       "the name 'a' occurs twice"},
      {"duplicate key", make_file(R"({"a":{"dtype":"F32","dtype":"F32"}})"), "the key 'dtype' occurs twice"},
      {"duplicate metadata", make_file(R"({"__metadata__":{"k":"1","k":"2"}})"), "the metadata key 'k' occurs twice"},
      {"metadata twice", make_file(R"({"__metadata__":{},"__metadata__":{}})"), "'__metadata__' occurs twice"},
      {"metadata number", make_file(R"({"__metadata__":{"k":1}})"), "expected a string"},
      {"overlap", make_file(R"({"a":)" + f32 + R"(,"b":)" + tensor("F32", "2", "4,12") + "}", std::string(12, '\0')),
       "'b': the data overlaps"},
      {"the same place twice", make_file(R"({"a":)" + f32 + R"(,"b":)" + f32 + "}", kEightBytes),
       "'b': the data overlaps"},
      {"gap", make_file(R"({"a":)" + f32 + R"(,"b":)" + tensor("F32", "2", "9,17") + "}", std::string(17, '\0')),
       "'b': the data leaves a gap"},
      {"gap at the start", make_file(one("F32", "2", "1,9"), std::string(9, '\0')), "'a': the data leaves a gap"},
      {"backwards", make_file(one("F32", "2", "0,18446744073709551615"), kEightBytes), "need 8 bytes"},
      {"end before begin", make_file(R"({"a":)" + f32 + R"(,"b":)" + tensor("F32", "0", "8,4") + "}", kEightBytes),
       "run backwards"},
      {"shape and offsets differ", make_file(one("F32", "3", "0,8"), kEightBytes),
       "need 12 bytes, its data_offsets span 8"},
      {"data missing", make_file(kOne, std::string(7, '\0')), "cover 8 bytes of data, but the file holds 7"},
      {"data left over", make_file(kOne, std::string(9, '\0')), "cover 8 bytes of data, but the file holds 9"},
      {"a bool of 2", make_file(one("BOOL", "2", "0,2"), std::string("\1\2")), "element 1 of a BOOL is 2"},
      {"a long name", make_file("{\"" + std::string(1'000'000, 'n') + "\":1}"), "nnn...'"},
  };
  const TemporaryFolder folder;
  const std::string path = folder / "hostile";
  for (const Case& c : cases) {
    CAPTURE(c.name);
    write_bytes(path, c.bytes);
    const std::string text = complaint(path);
    CHECK_MESSAGE(text.find(c.expected) != std::string::npos, text);
    CHECK(text.find("'" + path + "' is malformed") != std::string::npos);
    CHECK(text.size() < 600);
    // Again where 32 MiB is all there is: the answer must be the same one, not std::bad_alloc.
    CHECK(testing::run_in_child([&] {
            testing::limit_further_memory(std::size_t{32} << 20);
            return complaint(path) == text ? 0 : 1;
          }) == 0);
  }
}

TEST_CASE("what is no file at all") {
  const TemporaryFolder folder;
  CHECK(complaint(folder / "missing").find("No such file") != std::string::npos);
  CHECK(complaint(folder.path()).find("is not a regular file") != std::string::npos);
  CHECK(complaint("/dev/zero").find("is not a regular file") != std::string::npos);
}

TEST_CASE("thousands of damaged files: an error or tensors, nothing else") {
  const TemporaryFolder folder;
  const std::string path = folder / "damaged";
  save_safetensors(path,
                   {{"weight", Tensor::from_vector(std::vector<float>{1, 2, 3, 4}, {2, 2})},
                    {"ids", Tensor::from_vector(std::vector<std::int64_t>{5, 6})},
                    {"mask", Tensor::from_vector(std::vector<bool>{true, false})}},
                   {{"k", "v"}});
  const std::string good = read_bytes(path);
  Generator generator(17);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bad = good;
    for (std::int64_t edits = generator.integer(1, 4); edits > 0; --edits) {
      const std::size_t at = static_cast<std::size_t>(generator.integer(0, static_cast<std::int64_t>(bad.size())));
      switch (generator.integer(0, 4)) {
        case 0:
          bad[at] = static_cast<char>(generator.integer(0, 256));
          break;
        case 1:
          bad[at] = "0123456789[]{},:\""[generator.integer(0, 17)];
          break;
        case 2:
          bad.erase(at, 1);
          break;
        default:
          bad.insert(at, 1, static_cast<char>(generator.integer(32, 127)));
          break;
      }
    }
    write_bytes(path, bad);
    if (!complaint(path).empty()) ++refused;
  }
  CHECK(refused > 2000);
}

TEST_CASE("the published samples give the results of the reference implementation") {
  const char* data = std::getenv("POLYGRAD_TEST_DATA");
  const std::string folder = std::string(data != nullptr ? data : "") + "/safetensors-samples/";
  if (data == nullptr || !std::filesystem::exists(folder + "MANIFEST.tsv")) {
    return testing::skip("sample data missing: safetensors-samples in POLYGRAD_TEST_DATA");
  }
  const std::map<std::string, std::string> texts = {
      {"HeaderTooSmall", "too few for the header's length"},
      {"HeaderTooLarge", "the header is too large"},
      {"InvalidHeaderLength", "runs past the end of the file"},
      {"InvalidHeader", "not UTF-8"},
      {"InvalidHeaderDeserialization", "not valid JSON"},
      {"TensorInvalidInfo", "its data_offsets span"},
      {"InvalidOffset", "the data overlaps"},
      {"MetadataIncompleteBuffer", "bytes of data, but the file holds"},
      {"ValidationOverflow", "overflows 64 bits"},
  };
  std::istringstream manifest(read_bytes(folder + "MANIFEST.tsv"));
  std::string line;
  std::getline(manifest, line);  // the column names
  int ok = 0, refused = 0;
  while (std::getline(manifest, line)) {
    const std::string file = line.substr(0, line.find('\t')), expected = line.substr(line.rfind('\t') + 1);
    CAPTURE(file);
    const std::string text = complaint(folder + file);
    if (expected == "ok") {
      ++ok;
      CHECK_MESSAGE(text.empty(), text);
    } else {
      ++refused;
      CHECK_MESSAGE(text.find(texts.at(expected)) != std::string::npos, text);
    }
  }
  CHECK(ok >= 16);
  CHECK(refused >= 12);

  // Each of these files holds -3 ... 2 in its type, or its unsigned wrap.
  const std::vector<double> expected = {-3, -2, -1, 0, 1, 2};
  for (const auto& [name, tensor] : load_safetensors(folder + "valid/overall_range-3..3.safetensors")) {
    CAPTURE(name);
    std::vector<double> values = tensor.to(DType::f64).to_vector<double>();
    const double wrap = name == "B" ? 256 : name == "H" ? 65536 : name == "I" ? 4294967296 : 0;
    for (double& value : values) value -= wrap != 0 && value > 2 ? wrap : 0;
    CHECK(values == expected);
  }
}

TEST_CASE("what cannot be saved is refused before anything is touched") {
  const TemporaryFolder folder;
  const std::string path = folder / "model";
  const Tensor x = Tensor::from_vector(std::vector<float>{1});
  save_safetensors(path, {{"x", x}});
  const std::string before = read_bytes(path);
  CHECK_THROWS_WITH_AS(save_safetensors(path, {{"x", x}, {"x", x}}), Contains("duplicate name 'x'"), ValueError);
  CHECK_THROWS_WITH_AS(save_safetensors(path, {{"y", Tensor()}}), Contains("'y' is undefined"), ValueError);
  CHECK_THROWS_AS(save_safetensors(path, {{"__metadata__", x}}), ValueError);
  CHECK_THROWS_WITH_AS(save_safetensors(path, {{"\xFF", x}}), Contains("not UTF-8"), ValueError);
  CHECK_THROWS_WITH_AS(save_safetensors(path, {{"x", x}}, {{"k", "\xFF"}}), Contains("not UTF-8"), ValueError);
  CHECK_THROWS_WITH_AS(save_safetensors(folder / "no/such/folder", {{"x", x}}), Contains("No such file"), IoError);
  CHECK(read_bytes(path) == before);
  CHECK(folder.count() == 1);
}

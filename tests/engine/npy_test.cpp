// .npy files, byte by byte. That NumPy reads them is tested where Python is at hand.
#include "engine/npy.h"

#include <doctest/doctest.h>

#include <cstring>

#include "engine/autograd.h"
#include "engine/error.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using testing::TemporaryFolder;

namespace {

std::string saved(const Tensor& tensor) {
  const TemporaryFolder folder;
  save_npy(folder / "x.npy", tensor);
  CHECK(folder.count() == 1);
  return testing::read_bytes(folder / "x.npy");
}

// The 128-byte header with this dictionary.
std::string header(const std::string& dictionary) {
  std::string text("\x93NUMPY\x01\x00\x76\x00", 10);
  text += dictionary;
  text.append(127 - text.size(), ' ');
  return text + '\n';
}

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace

TEST_CASE("the header is NumPy's, to the byte") {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::string bytes = saved(Tensor::from_vector(values, {2, 3}));
  // Written by numpy.save(np.array([[1, 2, 3], [4, 5, 6]], np.float32)).
  CHECK(bytes == header("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }") + raw(values));
}

TEST_CASE("dtypes and shapes") {
  const auto starts = [](const Tensor& tensor, const std::string& dictionary, const std::string& data) {
    const std::string bytes = saved(tensor);
    CAPTURE(dictionary);
    CHECK(bytes.find(dictionary) == 10);
    CHECK((bytes.size() - data.size()) % 64 == 0);
    CHECK(bytes[bytes.size() - data.size() - 1] == '\n');
    CHECK(bytes.substr(bytes.size() - data.size()) == data);
  };
  starts(Tensor::from_vector(std::vector<double>{0.5}, {}), "{'descr': '<f8', 'fortran_order': False, 'shape': (), }",
         raw<double>({0.5}));
  starts(Tensor::from_vector(std::vector<std::int64_t>{-1, 2}),
         "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }", raw<std::int64_t>({-1, 2}));
  starts(Tensor::from_vector(std::vector<std::int32_t>{7}, {1, 1, 1}),
         "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 1, 1), }", raw<std::int32_t>({7}));
  starts(Tensor::from_vector(std::vector<std::uint8_t>{9}), "{'descr': '|u1'", "\x09");
  starts(Tensor::from_vector(std::vector<bool>{true, false}), "{'descr': '|b1'", std::string("\x01\x00", 2));
  starts(Tensor::from_vector(std::vector<Float16>{{0x3C00}}), "{'descr': '<f2'", std::string("\x00\x3C", 2));
  starts(Tensor::from_vector(std::vector<BFloat16>{{0x3F80}}), "{'descr': '<f4'", raw<float>({1}));
  starts(Tensor::empty({0, 4}), "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4), }", "");
}

TEST_CASE("a view is written in its own order") {
  const Tensor matrix = Tensor::from_vector(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3}, true);
  const std::string bytes = saved(make_view(matrix, {3, 2}, {1, 3}, 0));
  CHECK(bytes.substr(128) == raw<float>({1, 4, 2, 5, 3, 6}));
}

TEST_CASE("errors") {
  CHECK_THROWS_AS(save_npy("/nowhere/x.npy", Tensor::empty({1})), IoError);
  CHECK_THROWS_AS(save_npy("/tmp/x.npy", Tensor()), ValueError);
}

// Position tables on other grids: timm's values, what must not change, and which grid a file's table has.
#include "models/position.h"

#include <doctest/doctest.h>

#include <cmath>

#include "engine/error.h"
#include "engine/factory.h"
#include "models/weights.h"
#include "models/zoo.h"
#include "tests/models/position_golden.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;

namespace {

// As make_position_golden.py makes it.
Tensor golden_table(std::int64_t prefix, const Grid& grid) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < (prefix + grid[0] * grid[1]) * 3; ++i) {
    values.push_back(static_cast<float>(static_cast<double>((i * 37) % 101) / 50 - 1));
  }
  return Tensor::from_vector(values, {1, prefix + grid[0] * grid[1], 3});
}

constexpr Grid kSources[] = {{14, 14}, {2, 8}, {3, 5}}, kTargets[] = {{16, 16}, {4, 4}, {5, 3}};

std::unique_ptr<Model> model_of(const Grid& grid, std::uint64_t seed, bool class_token = true) {
  ModelConfig config;
  config.image_size = {8 * grid[0], 8 * grid[1]};
  config.patch_size = {8, 8};
  config.embed_dim = 16;
  config.num_heads = 2;
  config.depth = 1;
  config.num_classes = 5;
  config.class_token = class_token;
  config.seed = seed;
  return create_model("vit_tiny", config);
}

std::string refusal(Model& model, const std::string& path, const LoadOptions& options) {
  const std::string before = fingerprint(model.state());
  std::string text = "nothing was thrown";
  try {
    load_weights(model, path, options);
  } catch (const IoError& error) {
    text = error.what();
  }
  CHECK(fingerprint(model.state()) == before);
  return text;
}

}  // namespace

TEST_CASE("resized tables have timm's values") {
  int cases = 0;
  for (const testing::PositionGolden& golden : testing::kPositionGolden) {
    const Grid from = {golden.from[0], golden.from[1]}, to = {golden.to[0], golden.to[1]};
    CAPTURE(to_string(from));
    CAPTURE(to_string(to));
    CAPTURE(golden.prefix);
    const std::vector<float> values =
        resize_positions(golden_table(golden.prefix, from), golden.prefix, from, to).to_vector<float>();
    REQUIRE(values.size() == static_cast<std::size_t>((golden.prefix + to[0] * to[1]) * 3));
    double sum = 0;
    for (const float value : values) sum += static_cast<double>(value);
    CHECK(std::abs(sum - golden.sum) < 1e-4);
    std::size_t at = 0;
    for (const double expected : golden.picked) {
      CHECK(std::abs(static_cast<double>(values[at]) - expected) < 2e-6);
      at += static_cast<std::size_t>(golden.stride);
    }
    ++cases;
  }
  CHECK(cases == 27);
}

TEST_CASE("prefix tokens and equal grids stay bit for bit; 2 x 8 to 4 x 4 really interpolates") {
  for (const Grid& from : kSources) {
    for (const std::int64_t prefix : {0, 1, 2}) {
      const Tensor table = golden_table(prefix, from);
      const std::vector<float> given = table.to_vector<float>();
      CHECK(resize_positions(table, prefix, from, from).to_vector<float>() == given);
      for (const Grid& to : kTargets) {
        const std::vector<float> values = resize_positions(table, prefix, from, to).to_vector<float>();
        for (std::size_t i = 0; i < static_cast<std::size_t>(3 * prefix); ++i) CHECK(values[i] == given[i]);
      }
    }
  }
  const Tensor table = golden_table(0, {2, 8});
  CHECK(resize_positions(table, 0, {2, 8}, {4, 4}).to_vector<float>() != table.to_vector<float>());
}

TEST_CASE("a ramp along one axis stays one along that axis") {
  for (const Grid& from : kSources) {
    for (const Grid& to : kTargets) {
      for (const bool along_x : {true, false}) {
        std::vector<float> ramp;
        for (std::int64_t y = 0; y < from[0]; ++y) {
          for (std::int64_t x = 0; x < from[1]; ++x) ramp.push_back(static_cast<float>(along_x ? x : y));
        }
        const std::vector<float> values =
            resize_positions(Tensor::from_vector(ramp, {1, from[0] * from[1], 1}), 0, from, to).to_vector<float>();
        const auto at = [&](std::int64_t y, std::int64_t x) { return values[static_cast<std::size_t>(y * to[1] + x)]; };
        for (std::int64_t y = 0; y < to[0]; ++y) {
          for (std::int64_t x = 0; x < to[1]; ++x) {
            if (along_x) {
              CHECK(at(y, x) == doctest::Approx(at(0, x)));
              if (x > 0) CHECK(at(y, x) > at(y, x - 1));
            } else {
              CHECK(at(y, x) == doctest::Approx(at(y, 0)));
              if (y > 0) CHECK(at(y, x) > at(y - 1, x));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a table that is not of its grid, and a text that is none, are refused") {
  CHECK_THROWS_AS(resize_positions(zeros({1, 17, 3}), 0, {4, 4}, {2, 2}), ShapeError);
  CHECK_THROWS_AS(resize_positions(zeros({16, 3}), 0, {4, 4}, {2, 2}), ShapeError);
  CHECK(parse_grid("14x16") == Grid{14, 16});
  CHECK(parse_grid("14") == Grid{14, 14});
  CHECK(to_string(Grid{2, 8}) == "2x8");
  for (const char* text : {"", "x", "14x", "x14", "0x3", "-1x3", "2x3x4", "2 x 3", "9999999"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_grid(text), ConfigError);
  }
}

TEST_CASE("weights go to a model of another image size, by the grid that the file states") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "weights.safetensors";
  for (const Grid& from : kSources) {
    for (const bool class_token : {true, false}) {
      const auto source = model_of(from, 1, class_token);
      save_weights(path, *source, grid_metadata(source->position_tables()));
      for (const Grid& to : kTargets) {
        const auto model = model_of(to, 2, class_token);
        LoadOptions options;
        if (from[0] * from[1] != to[0] * to[1]) {  // lengths alone can't tell
          CHECK(refusal(*model, path, options).find("of another shape (1):\n    pos_embed") != std::string::npos);
        }
        options.positions = model->position_tables();
        const LoadReport report = load_weights(*model, path, options);
        CHECK(report.loaded == source->state().size());
        CHECK(report.resized == std::vector<std::string>{"pos_embed: " + to_string(from) + " -> " + to_string(to)});
        const std::vector<float> expected =
            resize_positions(source->find("pos_embed"), class_token ? 1 : 0, from, to).to_vector<float>();
        CHECK(model->find("pos_embed").to_vector<float>() == expected);
        CHECK(model->find("head.weight").to_vector<float>() == source->find("head.weight").to_vector<float>());
      }
      const auto same = model_of(from, 2, class_token);
      LoadOptions options;
      options.positions = same->position_tables();
      CHECK(load_weights(*same, path, options).resized.empty());
      CHECK(fingerprint(same->state()) == fingerprint(source->state()));
      options.grid = Grid{from[1] + 1, from[0]};
      CHECK(refusal(*same, path, options).find("the file says that its grid is " + to_string(from)) !=
            std::string::npos);
    }
  }
}

TEST_CASE("the grid of a file that does not state it is named, or the only one possible, or refused") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "weights.safetensors";
  const auto load = [&](const Grid& from, const Grid& to, std::optional<Grid> named) {
    const auto source = model_of(from, 1), model = model_of(to, 2);
    save_weights(path, *source);
    LoadOptions options;
    options.positions = model->position_tables();
    options.grid = named;
    try {
      const LoadReport report = load_weights(*model, path, options);
      return report.resized.empty() ? std::string("same") : report.resized[0];
    } catch (const IoError& error) {
      return std::string(error.what());
    }
  };
  CHECK(load({4, 4}, {4, 4}, {}) == "same");
  CHECK(load({4, 4}, {3, 5}, {}) == "pos_embed: 4x4 -> 3x5");
  CHECK(load({2, 8}, {2, 8}, Grid{2, 8}) == "same");
  CHECK(load({2, 8}, {4, 4}, Grid{2, 8}) == "pos_embed: 2x8 -> 4x4");
  // 16 positions may be 4 x 4 or 2 x 8; 15 are no square.
  CHECK(load({4, 4}, {2, 8}, {}).find("name it (--init-grid)") != std::string::npos);
  CHECK(load({3, 5}, {4, 4}, {}).find("name it (--init-grid)") != std::string::npos);
  CHECK(load({3, 5}, {5, 3}, {}).find("name it (--init-grid)") != std::string::npos);
  CHECK(load({3, 5}, {4, 4}, Grid{4, 4}).find("that is no grid of 4x4") != std::string::npos);
}

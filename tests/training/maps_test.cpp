// Attention maps: the numbers against the definition, the pictures, and what a resume keeps.
#include "apps/training/maps.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>

#include "apps/training/gnuplot.h"
#include "apps/training/heat_map.h"
#include "apps/training/plots.h"
#include "apps/training/probes.h"
#include "apps/training/trainer.h"
#include "data/decode.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/npy.h"
#include "models/zoo.h"
#include "ops/view.h"
#include "tests/support/temporary_folder.h"
#include "tests/training/small_run.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

// What went into each attention of a layer, in f64: [sample][head] of q and k, row by row.
struct Projections : AttentionObserver {
  explicit Projections(int which) : layer(which) {}
  void observe(const AttentionCall& call) override {
    if (call.layer.config().layer != layer) return;
    tokens = call.q.size(2);
    width = call.q.size(3);
    heads = call.q.size(1);
    for (const double value : call.q.to(DType::f64).contiguous().to_vector<double>()) q.push_back(value);
    for (const double value : call.k.to(DType::f64).contiguous().to_vector<double>()) k.push_back(value);
  }
  int layer;
  std::int64_t tokens = 0, width = 0, heads = 0;
  std::vector<double> q, k;
};

using Phi = std::function<double(double)>;

// P by its definition, in f64; keys and queries from `length` on are hidden. An empty phi is softmax.
std::vector<double> naive_map(const Projections& from, std::int64_t sample, std::int64_t head, const Phi& phi,
                              double divisor, std::int64_t length) {
  const std::int64_t n = from.tokens, d = from.width, base = (sample * from.heads + head) * n * d;
  std::vector<double> map(static_cast<std::size_t>(n * n));
  for (std::int64_t i = 0; i < length; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < length; ++j) {
      double score = 0;
      for (std::int64_t c = 0; c < d; ++c) {
        score +=
            from.q[static_cast<std::size_t>(base + i * d + c)] * from.k[static_cast<std::size_t>(base + j * d + c)];
      }
      score /= std::sqrt(static_cast<double>(d));
      double& entry = map[static_cast<std::size_t>(i * n + j)];
      entry = phi ? phi(score) / divisor : std::exp(score);
      sum += entry;
    }
    for (std::int64_t j = 0; j < length && !phi; ++j) map[static_cast<std::size_t>(i * n + j)] /= sum;
  }
  return map;
}

void check_close(const Tensor& map, const std::vector<double>& wanted) {
  const std::vector<float> values = map.to_vector<float>();
  REQUIRE(values.size() == wanted.size());
  double largest = 0, error = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    largest = std::max(largest, std::abs(wanted[i]));
    error = std::max(error, std::abs(wanted[i] - static_cast<double>(values[i])));
  }
  CHECK(largest > 0);
  CHECK(error <= 1e-5 * largest);
}

std::vector<double> mean_of(const std::vector<std::vector<double>>& maps) {
  std::vector<double> sum(maps[0].size());
  for (const std::vector<double>& map : maps) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += map[i] / static_cast<double>(maps.size());
  }
  return sum;
}

std::unique_ptr<Model> small_vit(const std::string& phi, bool class_token = true) {
  ModelConfig config;
  config.image_size = {8, 12};
  config.patch_size = {4, 4};
  config.in_channels = 1;
  config.embed_dim = 12;
  config.num_heads = 3;
  config.depth = 2;
  config.num_classes = 4;
  config.phi = {phi};
  config.class_token = class_token;
  config.pool = class_token ? "token" : "mean";
  return create_model("vit_tiny", config);
}

Tensor noise(std::int64_t samples) {
  Generator generator(5);
  std::vector<float> values(static_cast<std::size_t>(samples * 96));
  for (float& value : values) value = 3 * generator.uniform() - 1;
  return Tensor::from_vector(values, {samples, 1, 8, 12});
}

const Preprocessing kImages = {.channels = 1, .height = 8, .width = 12, .mean = {0.5}, .stddev = {0.5}};

// The PNG picture inside an SVG.
Tensor embedded_picture(const std::string& svg) {
  const std::string head = "data:image/png;base64,";
  const std::size_t begin = svg.find(head);
  REQUIRE(begin != std::string::npos);
  std::string bytes;
  unsigned bits = 0;
  int have = 0;  // bits that are no byte yet
  for (std::size_t at = begin + head.size(); svg[at] != '\'' && svg[at] != '='; ++at) {
    const std::string letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const std::size_t value = letters.find(svg[at]);
    if (value == std::string::npos) continue;  // a line end
    bits = bits << 6 | static_cast<unsigned>(value);
    have += 6;
    if (have < 8) continue;
    have -= 8;
    bytes += static_cast<char>(bits >> have & 255);
  }
  return decode_image(bytes, "embedded");
}

Preprocessing of_texts(std::int64_t length) {
  Preprocessing texts;
  texts.towers = 1;
  texts.length = length;
  texts.vocabulary = "listops";
  return texts;
}

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(std::filesystem::relative(entry.path(), folder).string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

TEST_CASE("a map is P by its definition: of a head, of all heads, of one sample and of all") {
  struct Case {
    const char* phi;
    Phi of;
  };
  for (const Case& c : {Case{"softmax", {}}, Case{"x3", [](double s) { return s * s * s; }},
                        Case{"relu", [](double s) { return std::max(s, 0.0); }}}) {
    CAPTURE(c.phi);
    const auto model = small_vit(c.phi);
    const Tensor input = noise(35);  // more than the samples of one forward
    const TokenGrid grid = token_grid(*model, kImages);
    Projections last(2);
    observe_forward(*model, input, last);
    REQUIRE(last.tokens == 7);
    const double divisor = std::string(c.phi) == "x3" ? std::sqrt(6.0) : 1;  // of the patches
    std::vector<std::vector<double>> of_head, of_all, queries;
    for (std::int64_t sample = 0; sample < 35; ++sample) {
      std::vector<std::vector<double>> heads;
      for (std::int64_t head = 0; head < 3; ++head) heads.push_back(naive_map(last, sample, head, c.of, divisor, 7));
      of_head.push_back(heads[1]);
      of_all.push_back(mean_of(heads));
    }
    check_close(compute_map(*model, input, {2, 2, MapReduce::mean}, grid), mean_of(of_head));
    check_close(compute_map(*model, input, {2, 0, MapReduce::mean}, grid), mean_of(of_all));
    check_close(compute_map(*model, input, {2, 2, MapReduce::none}, grid), of_head[0]);
    const Tensor query = compute_map(*model, input, {2, 2, MapReduce::query}, grid);
    CHECK(query.shape() == Shape{8, 2, 3});
    std::vector<double> wanted;  // the class token's row, without the class token
    for (std::size_t sample = 0; sample < 8; ++sample) {
      wanted.insert(wanted.end(), of_head[sample].begin() + 1, of_head[sample].begin() + 7);
    }
    check_close(query, wanted);
  }
}

TEST_CASE("without a class token a query map is the mean of the queries") {
  const auto model = small_vit("x3", false);
  const TokenGrid grid = token_grid(*model, kImages);
  CHECK(grid.first == 0);
  const Tensor input = noise(2);
  const Tensor map = compute_map(*model, input, {1, 3, MapReduce::none}, grid);
  const Tensor query = compute_map(*model, input, {1, 3, MapReduce::query}, grid);
  CHECK(query.shape() == Shape{2, 2, 3});
  std::vector<double> wanted(6);
  for (std::size_t i = 0; i < 36; ++i) wanted[i % 6] += static_cast<double>(map.data<float>()[i]) / 6;
  check_close(select(query, 0, 0).contiguous(), wanted);
}

TEST_CASE("padding is hidden: zero in a map, and no query of a mean") {
  ModelConfig config;
  config.text_length = 16;
  config.embed_dim = 8;
  config.num_heads = 2;
  config.depth = 1;
  config.num_classes = 3;
  config.phi = {"x3"};
  const auto model = create_model("lra_listops", config);
  const Preprocessing texts = of_texts(16);
  std::vector<std::int64_t> tokens(2 * 9, kNoToken);
  const std::int64_t lengths[] = {5, 9};
  for (std::int64_t row = 0; row < 2; ++row) {
    for (std::int64_t i = 0; i < lengths[row]; ++i)
      tokens[static_cast<std::size_t>(row * 9 + i)] = 1 + (3 * i + row) % 7;
  }
  const Tensor input = Tensor::from_vector(tokens, {2, 1, 9});
  const TokenGrid grid = token_grid(*model, texts);
  CHECK(grid.rows == 0);
  Projections seen(1);
  observe_forward(*model, input, seen);
  const Phi cube = [](double s) { return s * s * s; };
  const std::vector<double> first = naive_map(seen, 0, 1, cube, 4, 5), second = naive_map(seen, 1, 1, cube, 4, 9);
  check_close(compute_map(*model, input, {1, 2, MapReduce::none}, grid), first);
  check_close(compute_map(*model, input, {1, 2, MapReduce::mean}, grid), mean_of({first, second}));
  std::vector<double> queries(18);
  for (std::size_t i = 0; i < 81; ++i) {
    queries[i % 9] += first[i] / 5;
    queries[9 + i % 9] += second[i] / 9;
  }
  const Tensor query = compute_map(*model, input, {1, 2, MapReduce::query}, grid);
  CHECK(query.shape() == Shape{2, 1, 9});
  check_close(query, queries);
}

TEST_CASE("what a model does not have is refused by name, before anything is trained") {
  struct Case {
    const char* entry;
    const char* says;
  };
  for (const Case& c : {
           Case{R"([{"layer":3,"head":1}])", "entry 1: layer 3; expected 1 to 2, or -1 for the last"},
           Case{R"([{"layer":0}])", "layer 0; expected 1 to 2"},
           Case{R"([{"layer":-3}])", "layer -3; expected 1 to 2"},
           Case{R"([{"layer":1.5}])", "layer 1.5; expected 1 to 2"},
           Case{R"([{"layer":1},{"layer":2,"head":4}])", "entry 2: head 4; layer 2 has heads 1 to 3"},
           Case{R"([{"layer":1,"head":0}])", "head 0; layer 1 has heads 1 to 3"},
           Case{R"([{"layer":1,"head":"all"}])", "head \"all\"; layer 1 has heads 1 to 3; or mean"},
           Case{R"([{"layer":1,"reduce":"sum"}])", "reduce \"sum\"; expected mean, none or query"},
           Case{R"([{"head":1}])", "no layer; expected {\"layer\": 1"},
           Case{R"([{"layer":1,"haed":1}])", "unknown key 'haed'"},
           Case{R"([3])", "the number 3; expected {\"layer\": 1"},
           Case{R"([{"layer":2},{"layer":-1,"head":"mean"}])", "entry 2: layer-2_head-mean_mean is there already"},
       }) {
    CAPTURE(c.entry);
    const Config config = small_config({std::string("probe.maps=") + c.entry});
    std::string message;
    try {
      small_experiment(config);
    } catch (const ConfigError& error) {
      message = error.what();
    }
    CHECK_MESSAGE(message.find(c.says) != std::string::npos, message);
    CHECK(message.starts_with("[config] probe.maps: "));
  }
  const Config config =
      small_config({R"(probe.maps=[{"layer":-1,"head":null,"reduce":"query"},{"layer":2,"head":3}])"});
  const Experiment experiment = small_experiment(config);
  const std::vector<MapRequest> requests = map_requests(config, *experiment.model);
  CHECK(requests[0].name() == "layer-2_head-mean_query");
  CHECK(requests[1].name() == "layer-2_head-3_mean");
}

TEST_CASE("a run with maps has the weights of one without; a resume leaves each step's maps once") {
  const TemporaryFolder folder;
  const auto run = [&](const std::string& name, const std::vector<std::string>& extra, const std::string& resume = "") {
    const Config config = small_config(extra);
    Trainer trainer(config, small_experiment(config), {.out = folder / name, .resume = resume});
    trainer.run();
  };
  const std::string maps =
      R"(probe.maps=[{"layer":2,"head":1},{"layer":1,"reduce":"none"},{"layer":-1,"reduce":"query"}])";
  const std::vector<std::string> steps = {"probe.every_steps=5", "train.checkpoint_every_steps=7", "train.keep_last=9"};
  run("plain", steps);
  std::vector<std::string> with = steps;
  with.push_back(maps);
  run("maps", with);
  const std::string weights = "checkpoints/latest/model.safetensors";
  CHECK(read_file(folder / ("plain/" + weights)) == read_file(folder / ("maps/" + weights)));
  const std::vector<std::string> files = files_below(folder / "maps/maps");
  std::vector<std::string> wanted;
  for (const char* step : {"000000", "000005", "000010", "000015", "000020", "000021"}) {
    for (const char* name : {"layer-1_head-mean_none.gp", "layer-1_head-mean_none.npy", "layer-2_head-1_mean.gp",
                             "layer-2_head-1_mean.npy", "layer-2_head-mean_query.npy", "layer-2_head-mean_query.png"}) {
      wanted.push_back(std::string("step-") + step + "/" + name);
    }
  }
  CHECK(files == wanted);
  // Each picture is as large as its map says.
  const Tensor overlay = read_image(folder / "maps/maps/step-000005/layer-2_head-mean_query.png");
  CHECK(overlay.size(2) == 8 * (128 + 6) + 6);
  const std::string npy = read_file(folder / "maps/maps/step-000005/layer-2_head-1_mean.npy");
  CHECK(npy.find("'<f4'") != std::string::npos);
  CHECK(npy.find("(5, 5)") != std::string::npos);

  // Back to step 7: what lies behind it is made again, with the same bytes.
  std::vector<std::string> contents;
  for (const std::string& file : files) contents.push_back(read_file(folder / ("maps/maps/" + file)));
  std::filesystem::create_directories(folder / "maps/maps/step-000012");  // of another way
  write_file_atomically(folder / "maps/maps/step-000012/layer-1_head-1_mean.npy", "x");
  run("maps", with, folder / "maps/checkpoints/step-000007");
  CHECK(files_below(folder / "maps/maps") == files);
  for (std::size_t i = 0; i < files.size(); ++i) CHECK(read_file(folder / ("maps/maps/" + files[i])) == contents[i]);

  CHECK(plot_runs({folder / "maps"}, folder / "maps/plots") == "");
  int pictures = 0;
  for (const std::string& file : files_below(folder / "maps/maps")) {
    if (!file.ends_with(".svg")) continue;
    ++pictures;
    const std::string svg = read_file(folder / ("maps/maps/" + file));
    for (const char* text : {">key<", ">query<", ">attention<", "x3 / 2"})
      CHECK_MESSAGE(svg.find(text) != std::string::npos, file << " " << std::string(text) << " " << svg.size());
    // Four patches are drawn as an embedded picture; the colour bar is made of polygons.
    CHECK(svg.find("data:image/png;base64") != std::string::npos);
    CHECK(svg.size() < 60'000);
  }
  CHECK(pictures == 12);
}

TEST_CASE("a stop cuts a probe off, and the resume makes its maps") {
  const TemporaryFolder folder;
  const Config config = small_config({R"(probe.maps=[{"layer":1},{"layer":-1,"reduce":"query"}])", "train.epochs=2",
                                      "probe.every_steps=7", "train.eval_every_steps=7"});
  Trainer(config, small_experiment(config), {.out = folder / "whole"}).run();
  {
    Trainer trainer(config, small_experiment(config), {.out = folder / "cut"});
    std::stop_source stop;
    trainer.on_eval = [&](const EvalInfo&) { stop.request_stop(); };
    CHECK(trainer.run(stop.get_token()).status == "stopped");
    CHECK(!std::filesystem::exists(folder / "cut/maps/step-000007/layer-1_head-mean_mean.npy"));
  }
  Trainer(config, small_experiment(config), {.out = folder / "cut", .resume = "auto"}).run();
  const std::vector<std::string> files = files_below(folder / "whole/maps");
  CHECK(files_below(folder / "cut/maps") == files);
  CHECK(files.size() == 3 * 4);
  for (const std::string& file : files)
    CHECK_MESSAGE(read_file(folder / ("cut/maps/" + file)) == read_file(folder / ("whole/maps/" + file)), file);
}

TEST_CASE("maps that can't be written are said once, and end nothing") {
  const TemporaryFolder folder;
  const Config config = small_config({R"(probe.maps=[{"layer":1}])", "probe.every_steps=5"});
  int warnings = 0;
  Trainer trainer(config, small_experiment(config),
                  {.out = folder / "run", .report = [&](std::string_view line) {
                     warnings +=
                         line.starts_with("warning    attention maps are missing: [maps] can't make the folder ");
                   }});
  trainer.on_step = [&](const StepInfo& info) {
    if (info.step != 1) return;
    std::filesystem::remove_all(folder / "run/maps");
    write_file_atomically(folder / "run/maps", "in the way");
  };
  const TrainResult result = trainer.run();
  CHECK(result.status == "done");
  CHECK(warnings == 1);
}

TEST_CASE("a large map is drawn as a small picture of means") {
  const TemporaryFolder folder;
  ModelConfig config;
  config.text_length = 2100;
  config.embed_dim = 8;
  config.num_heads = 2;
  config.depth = 1;
  config.phi = {"softmax"};
  const auto model = create_model("lra_listops", config);
  const Tensor input = Tensor::from_vector(std::vector<std::int64_t>(2100, 3), {1, 1, 2100});
  const Preprocessing texts = of_texts(2100);
  write_maps(folder.path(), 40, *model, input, texts, {{1, 1, MapReduce::mean}, {1, 2, MapReduce::query}});
  const std::string place = folder / "maps/step-000040/";
  CHECK(std::filesystem::file_size(place + "layer-1_head-1_mean.npy") == 128 + 4 * 2100 * 2100);
  CHECK(std::filesystem::file_size(place + "layer-1_head-1_mean_drawn.npy") == 128 + 4 * 700 * 700);
  CHECK(read_file(place + "layer-1_head-1_mean.gp").find("means of 3 x 3") != std::string::npos);
  CHECK(draw_maps(folder.path()) == "");
  CHECK(read_file(place + "layer-1_head-1_mean.svg").find("data:image/png;base64") != std::string::npos);
  CHECK(std::filesystem::file_size(place + "layer-1_head-1_mean.svg") < 3'000'000);
  CHECK(std::filesystem::file_size(place + "layer-1_head-2_query.svg") < 1'000'000);
  CHECK(draw_maps(folder.path()) == "");
}

TEST_CASE("each entry of a matrix is in its picture, in its place and colour") {
  const TemporaryFolder folder;
  HeatMap map;
  map.name = "a";
  map.data = "a.npy";
  map.title = map.x_label = map.y_label = map.value_label = "x";
  struct Case {
    std::int64_t rows, columns, first;
  };
  for (const Case& c : {Case{3, 2, 0}, Case{3, 5, 1}, Case{2, 900, 0}, Case{300, 300, 1}}) {
    CAPTURE(c.rows);
    CAPTURE(c.columns);
    // All 0 but for the last entry, which is the largest; what is not shown is larger still.
    std::vector<float> values(static_cast<std::size_t>(c.rows * c.columns));
    for (std::int64_t i = 0; i < c.rows * c.columns; ++i) {
      if (i / c.columns < c.first || i % c.columns < c.first) values[static_cast<std::size_t>(i)] = 9;
    }
    values.back() = 1;
    save_npy(folder / "a.npy", Tensor::from_vector(values, {c.rows, c.columns}));
    map.rows = c.rows;
    map.columns = c.columns;
    map.first_row = map.first_column = c.first;
    map.high = 1;
    const auto offset =
        static_cast<std::int64_t>(std::filesystem::file_size(folder / "a.npy")) - 4 * c.rows * c.columns;
    write_file_atomically(folder / "a.gp", gnuplot_script(map, offset));
    REQUIRE(run_gnuplot(folder.path(), {"a.gp"}) == "");
    const Tensor picture = embedded_picture(read_file(folder / "a.svg"));
    const std::int64_t height = picture.size(1), width = picture.size(2), shown = c.rows - c.first;
    const std::int64_t dots = height / shown, dots_across = width / (c.columns - c.first);
    CHECK(height == shown * dots);
    CHECK(width == (c.columns - c.first) * dots_across);
    int wrong = 0;
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x) {
        const bool last = y >= height - dots && x >= width - dots_across;
        const auto green = picture.data<std::uint8_t>()[(height + y) * width + x];
        wrong += last ? green < 220 : green > 10;  // viridis ends with (253, 231, 37), and begins with (68, 1, 84)
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("a matrix of nothing but NaN has its picture too") {
  const TemporaryFolder folder;
  for (const std::int64_t side : {5, 300}) {
    const std::vector<float> values(static_cast<std::size_t>(side * side), std::numeric_limits<float>::quiet_NaN());
    save_npy(folder / "a.npy", Tensor::from_vector(values, {side, side}));
    HeatMap map;
    map.name = "a";
    map.data = "a.npy";
    map.rows = map.columns = side;
    write_file_atomically(folder / "a.gp", gnuplot_script(map, 128));
    CHECK(run_gnuplot(folder.path(), {"a.gp"}) == "");
    CHECK(std::filesystem::exists(folder / "a.svg"));
  }
}

TEST_CASE("colours diverge from 0 where numbers are negative, and nothing breaks where they are odd") {
  HeatMap map;
  map.name = "a";
  map.data = "a.npy";
  map.rows = map.columns = 4;
  map.title = "a_b \"c\"";
  map.low = -0.5;
  map.high = 2;
  CHECK(gnuplot_script(map, 128).find("set cbrange [-2:2]") != std::string::npos);
  CHECK(gnuplot_script(map, 128).find("\"a_b \\\"c\\\"\" noenhanced") != std::string::npos);
  map.low = 0.25;
  CHECK(gnuplot_script(map, 128).find("set cbrange [0:2]") != std::string::npos);
  map.low = std::numeric_limits<double>::infinity();  // nothing finite
  map.high = -map.low;
  CHECK(gnuplot_script(map, 128).find("set cbrange [0:1]") != std::string::npos);
  map.first_row = 4;
  CHECK_THROWS_AS(gnuplot_script(map, 128), ValueError);
}

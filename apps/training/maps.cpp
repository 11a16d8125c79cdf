#include "apps/training/maps.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <system_error>

#include "apps/training/gnuplot.h"
#include "apps/training/heat_map.h"
#include "apps/training/pictures.h"
#include "apps/training/probes.h"
#include "data/png.h"
#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"
#include "engine/npy.h"
#include "models/vision/vit.h"
#include "ops/view.h"

namespace polygrad {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kMostQuerySamples = 8;
constexpr std::int64_t kMostDrawnSide = 1024;  // of a heat map; of more tokens, neighbours share a cell

const char* to_string(MapReduce reduce) {
  return reduce == MapReduce::mean ? "mean" : reduce == MapReduce::none ? "none" : "query";
}

// --- what is asked for ---------------------------------------------------------------------------------------------

MapRequest request_of(const JsonValue& entry, std::size_t number, const std::vector<const Attention*>& layers) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError(format("[config] probe.maps: entry {}: {}", number, what));
  };
  constexpr const char* kForm = "expected {\"layer\": 1, \"head\": 1, \"reduce\": \"mean\"}";
  if (entry.kind() != JsonValue::Kind::object) refuse(format("{}; {}", describe(entry), kForm));
  MapRequest request;
  bool has_layer = false;
  const auto depth = static_cast<std::int64_t>(layers.size());
  const JsonValue* head = nullptr;
  for (const auto& [key, value] : entry.members()) {
    if (key == "layer") {
      has_layer = true;
      const std::int64_t layer = value.kind() == JsonValue::Kind::integer ? value.as_int() : 0;
      request.layer = layer < 0 ? depth + 1 + layer : layer;
      if (layer == 0 || request.layer < 1 || request.layer > depth) {
        refuse(format("layer {}; expected 1 to {}, or -1 for the last", value.dump(), depth));
      }
    } else if (key == "head") {
      head = &value;
    } else if (key == "reduce") {
      const bool text = value.kind() == JsonValue::Kind::text;
      if (text && value.as_text() == "none") {
        request.reduce = MapReduce::none;
      } else if (text && value.as_text() == "query") {
        request.reduce = MapReduce::query;
      } else if (!text || value.as_text() != "mean") {
        refuse(format("reduce {}; expected mean, none or query", value.dump()));
      }
    } else {
      refuse(format("unknown key '{}'; {}", key, kForm));
    }
  }
  if (!has_layer) refuse(format("no layer; {}", kForm));
  if (head != nullptr && !head->is_null() && !(*head == JsonValue::text("mean"))) {
    const std::int64_t heads = layers[static_cast<std::size_t>(request.layer - 1)]->heads();
    request.head = head->kind() == JsonValue::Kind::integer ? head->as_int() : 0;
    if (request.head < 1 || request.head > heads) {
      refuse(
          format("head {}; layer {} has heads 1 to {}; or mean for all of them", head->dump(), request.layer, heads));
    }
  }
  return request;
}

// --- the numbers ---------------------------------------------------------------------------------------------------

Tensor row_of(const Tensor& x, std::int64_t row) {
  return x.defined() ? slice(x, 0, row % x.size(0), row % x.size(0) + 1) : x;
}

// P of one sample and head, f32 (queries, keys) on the CPU.
Tensor one_map(const AttentionCall& call, std::int64_t sample, std::int64_t head) {
  const auto of_head = [&](const Tensor& x) { return x.defined() ? slice(row_of(x, sample), 1, head, head + 1) : x; };
  AttentionMasks masks;
  masks.bias = of_head(call.masks.bias);
  masks.key_mask = row_of(call.masks.key_mask, sample);
  masks.query_mask = row_of(call.masks.query_mask, sample);
  masks.regions = row_of(call.masks.regions, sample);
  const Tensor map = attention_map(of_head(call.q), of_head(call.k), call.params, masks);
  return reshape(map.to(Device::cpu()).to(DType::f32), {map.size(2), map.size(3)}).contiguous();
}

// Whether each query of a sample is there.
std::vector<bool> visible_queries(const AttentionCall& call, std::int64_t sample, std::int64_t queries) {
  if (!call.masks.query_mask.defined()) return std::vector<bool>(static_cast<std::size_t>(queries), true);
  return row_of(call.masks.query_mask, sample).to(Device::cpu()).contiguous().to_vector<bool>();
}

class MapObserver : public AttentionObserver {
 public:
  MapObserver(const MapRequest& request, const TokenGrid& grid) : request_(request), grid_(grid) {}

  void observe(const AttentionCall& call) override {
    if (call.layer.config().layer != request_.layer) return;
    const std::int64_t heads = call.q.size(1);
    const std::int64_t first = request_.head == 0 ? 0 : request_.head - 1,
                       last = request_.head == 0 ? heads : first + 1;
    for (std::int64_t sample = 0; sample < call.q.size(0) && samples < wanted(); ++sample, ++samples) {
      for (std::int64_t head = first; head < last; ++head) add(call, sample, one_map(call, sample, head));
    }
    heads_ = last - first;
  }

  std::int64_t wanted() const {
    return request_.reduce == MapReduce::mean    ? std::numeric_limits<std::int64_t>::max()
           : request_.reduce == MapReduce::query ? kMostQuerySamples
                                                 : 1;
  }
  std::int64_t samples = 0, queries = 0, keys = 0;
  std::vector<double> sums;  // (queries, keys), or a row of keys for each sample

  double divisor() const {
    return static_cast<double>(heads_) * (request_.reduce == MapReduce::mean ? static_cast<double>(samples) : 1.0);
  }

 private:
  void add(const AttentionCall& call, std::int64_t sample, const Tensor& map) {
    queries = map.size(0);
    keys = map.size(1);
    const float* p = map.data<float>();
    if (request_.reduce != MapReduce::query) {
      sums.resize(static_cast<std::size_t>(map.numel()));
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(p[i]);
      return;
    }
    sums.resize(static_cast<std::size_t>((samples + 1) * keys));
    double* sum = sums.data() + samples * keys;
    if (grid_.class_query) {
      for (std::int64_t key = 0; key < keys; ++key) sum[key] += static_cast<double>(p[key]);
      return;
    }
    const std::vector<bool> visible = visible_queries(call, sample, queries);
    const auto is_there = [&](std::int64_t query) { return visible[static_cast<std::size_t>(query)]; };
    std::int64_t count = 0;
    for (std::int64_t query = grid_.first; query < queries; ++query) count += is_there(query) ? 1 : 0;
    for (std::int64_t query = grid_.first; query < queries; ++query) {
      if (!is_there(query)) continue;
      for (std::int64_t key = 0; key < keys; ++key) {
        sum[key] += static_cast<double>(p[query * keys + key]) / static_cast<double>(count);
      }
    }
  }

  const MapRequest& request_;
  const TokenGrid& grid_;
  std::int64_t heads_ = 1;
};

// --- the files -----------------------------------------------------------------------------------------------------

std::string maps_folder(const std::string& run) { return run + "/maps"; }

// "x3 / 16", "softmax".
std::string activation_of(const Attention& layer) {
  const AttentionConfig& config = layer.config();
  const std::string name = to_string(config.phi);
  return config.phi.is_softmax() || config.divisor == 1 ? name : format("{} / {:.4g}", name, config.divisor);
}

std::string title_of(const MapRequest& request, const Attention& layer, std::int64_t step, std::int64_t samples) {
  return format("layer {}, {}, {}, step {}, {}", request.layer,
                request.head == 0 ? "mean of the heads" : format("head {}", request.head), activation_of(layer), step,
                request.reduce == MapReduce::mean ? format("mean of {} samples", samples) : "first sample");
}

// Means of blocks of `cell` x `cell` entries; at the lower and right edge of what is there.
Tensor in_cells(const Tensor& map, std::int64_t cell) {
  const std::int64_t rows = (map.size(0) + cell - 1) / cell, columns = (map.size(1) + cell - 1) / cell;
  Tensor result = Tensor::empty(Shape{rows, columns});
  const float* from = map.data<float>();
  for (std::int64_t y = 0; y < rows; ++y) {
    for (std::int64_t x = 0; x < columns; ++x) {
      double sum = 0;
      std::int64_t count = 0;
      for (std::int64_t i = y * cell; i < std::min((y + 1) * cell, map.size(0)); ++i) {
        for (std::int64_t j = x * cell; j < std::min((x + 1) * cell, map.size(1)); ++j, ++count) {
          sum += static_cast<double>(from[i * map.size(1) + j]);
        }
      }
      result.data<float>()[y * columns + x] = static_cast<float>(sum / static_cast<double>(count));
    }
  }
  return result;
}

// The colours reach to the largest magnitude shown; where few entries are far beyond all others, to where these end.
void set_range(HeatMap& map, const Tensor& values) {
  constexpr double kShare = 0.995, kFar = 2;
  std::vector<double> sizes;
  map.low = map.high = 0;
  for (std::int64_t y = map.first_row; y < map.rows; ++y) {
    for (std::int64_t x = map.first_column; x < map.columns; ++x) {
      const auto value = static_cast<double>(values.data<float>()[y * map.columns + x]);
      if (!std::isfinite(value)) continue;
      map.low = std::min(map.low, value);
      map.high = std::max(map.high, value);
      sizes.push_back(std::abs(value));
    }
  }
  if (sizes.empty()) return;
  const auto place = sizes.begin() + static_cast<std::ptrdiff_t>(kShare * static_cast<double>(sizes.size() - 1));
  std::nth_element(sizes.begin(), place, sizes.end());
  if (!(*place > 0) || std::max(-map.low, map.high) <= kFar * *place) return;
  map.value_label += format(" (in all {:.2g} to {:.2g})", map.low, map.high);
  map.low = std::max(map.low, -*place);
  map.high = std::min(map.high, *place);
}

// Writes the script that draws `values` (rows, columns), which lie in NAME.npy.
void write_heat_map(const std::string& folder, HeatMap map, Tensor values) {
  map.data = map.name + ".npy";
  if (values.numel() > kMostDrawnSide * kMostDrawnSide) {
    map.cell = (std::max(values.size(0), values.size(1)) + kMostDrawnSide - 1) / kMostDrawnSide;
    map.title += format(", means of {} x {}", map.cell, map.cell);
    map.data = map.name + "_drawn.npy";
    values = in_cells(values, map.cell);
    save_npy(folder + "/" + map.data, values);
  }
  map.rows = values.size(0);
  map.columns = values.size(1);
  set_range(map, values);
  const std::string data = folder + "/" + map.data;
  std::error_code failure;
  const auto bytes = static_cast<std::int64_t>(fs::file_size(data, failure));
  if (failure) throw IoError(format("[maps] can't read {}: {}", data, failure.message()));
  const std::int64_t offset = bytes - values.numel() * static_cast<std::int64_t>(sizeof(float));
  write_file_atomically(folder + "/" + map.name + ".gp", gnuplot_script(map, offset));
}

// The steps of the folders in RUN/maps, with their paths.
std::vector<std::pair<std::int64_t, fs::path>> step_folders(const std::string& run) {
  constexpr std::string_view kPrefix = "step-";
  std::vector<std::pair<std::int64_t, fs::path>> folders;
  std::error_code error;
  for (fs::directory_iterator it(maps_folder(run), error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    folders.emplace_back(std::strtoll(name.c_str() + kPrefix.size(), nullptr, 10), it->path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

}  // namespace

std::string MapRequest::name() const {
  return format("layer-{}_head-{}_{}", layer, head == 0 ? "mean" : format("{}", head), to_string(reduce));
}

std::vector<MapRequest> map_requests(const Config& config, const Model& model) {
  const std::vector<const Attention*> layers = model.attention_layers();
  std::vector<MapRequest> requests;
  std::set<std::string> names;
  for (const JsonValue& entry : config.value("probe.maps").items()) {
    requests.push_back(request_of(entry, requests.size() + 1, layers));
    if (!names.insert(requests.back().name()).second) {
      throw ConfigError(
          format("[config] probe.maps: entry {}: {} is there already", requests.size(), requests.back().name()));
    }
  }
  return requests;
}

TokenGrid token_grid(const Model& model, const Preprocessing& input) {
  TokenGrid grid;
  if (const auto* vit = dynamic_cast<const Vit*>(&model)) {
    const VitConfig& config = vit->config();
    grid.first = config.class_token ? 1 : 0;
    grid.rows = config.image_size[0] / config.patch_size[0];
    grid.columns = config.image_size[1] / config.patch_size[1];
    grid.class_query = config.class_token && config.pool == Pool::token;
  } else if (input.vocabulary == "grey") {  // a token for each pixel
    grid.rows = grid.columns = std::llround(std::sqrt(static_cast<double>(input.length)));
  }
  return grid;
}

Tensor compute_map(const Model& model, const Tensor& input, const MapRequest& request, const TokenGrid& grid,
                   const std::stop_token& stop) {
  MapObserver observer(request, grid);
  const Tensor samples = slice(input, 0, 0, std::min(input.size(0), observer.wanted()));
  if (!observe_forward(model, samples, observer, stop)) return {};
  std::vector<float> values;
  const double divisor = observer.divisor();
  if (request.reduce != MapReduce::query) {
    for (const double sum : observer.sums) values.push_back(static_cast<float>(sum / divisor));
    return Tensor::from_vector(values, {observer.queries, observer.keys});
  }
  const bool picture = grid.rows > 0 && grid.first + grid.rows * grid.columns == observer.keys;
  const std::int64_t first = picture ? grid.first : 0;
  for (std::int64_t sample = 0; sample < observer.samples; ++sample) {
    for (std::int64_t key = first; key < observer.keys; ++key) {
      values.push_back(
          static_cast<float>(observer.sums[static_cast<std::size_t>(sample * observer.keys + key)] / divisor));
    }
  }
  return Tensor::from_vector(values,
                             {observer.samples, picture ? grid.rows : 1, picture ? grid.columns : observer.keys});
}

bool write_maps(const std::string& run, std::int64_t step, const Model& model, const Tensor& input,
                const Preprocessing& preprocessing, const std::vector<MapRequest>& requests,
                const std::stop_token& stop) {
  const std::string folder = format("{}/step-{:06}", maps_folder(run), step);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw IoError(format("[maps] can't make the folder {}: {}", folder, error.message()));
  const TokenGrid grid = token_grid(model, preprocessing);
  const std::vector<const Attention*> layers = model.attention_layers();
  for (const MapRequest& request : requests) {
    const Attention& layer = *layers[static_cast<std::size_t>(request.layer - 1)];
    const Tensor values = compute_map(model, input, request, grid, stop);
    if (!values.defined()) return false;
    save_npy(folder + "/" + request.name() + ".npy", values);
    HeatMap map;
    map.name = request.name();
    map.x_label = "key";
    map.value_label = "attention";
    if (request.reduce != MapReduce::query) {
      const std::int64_t rows = input.size(0) * std::max<std::int64_t>(1, preprocessing.towers);
      map.title = title_of(request, layer, step, rows);
      map.y_label = "query";
      map.first_row = map.first_column = grid.first;  // the patches; a class token's numbers would outshine theirs
      write_heat_map(folder, std::move(map), values);
    } else if (values.size(1) > 1) {
      const Tensor pictures = slice(input, 0, 0, std::min(input.size(0), values.size(0)));
      write_png(folder + "/" + request.name() + ".png", attention_overlay(pictures, values, preprocessing));
    } else {
      map.title =
          format("layer {}, {}, {}, step {}, mean of the queries", request.layer,
                 request.head == 0 ? "mean of the heads" : format("head {}", request.head), activation_of(layer), step);
      map.y_label = "sample";
      write_heat_map(folder, std::move(map), reshape(values, {values.size(0), values.size(2)}));
    }
  }
  return true;
}

void discard_maps_after(const std::string& run, std::int64_t step) {
  for (const auto& [its_step, folder] : step_folders(run)) {
    std::error_code error;
    if (its_step > step) fs::remove_all(folder, error);
    if (error) throw IoError(format("[maps] can't remove {}: {}", folder.string(), error.message()));
  }
}

std::string draw_maps(const std::string& run) {
  for (const auto& [step, folder] : step_folders(run)) {
    std::vector<std::string> scripts;
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      if (it->path().extension() != ".gp") continue;
      const fs::path picture = fs::path(it->path()).replace_extension(".svg");
      std::error_code missing;
      const bool drawn = fs::exists(picture, missing) && fs::file_size(picture, missing) > 0 &&
                         fs::last_write_time(picture, missing) >= fs::last_write_time(it->path(), missing);
      if (!drawn) scripts.push_back(it->path().filename().string());
    }
    std::sort(scripts.begin(), scripts.end());
    if (scripts.empty()) continue;
    const std::string trouble = run_gnuplot(folder.string(), scripts);
    if (!trouble.empty()) return trouble;
  }
  return "";
}

}  // namespace polygrad

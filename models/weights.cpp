#include "models/weights.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

namespace {

// Whether `name` is `path` or lies below it.
bool is_below(const std::string& name, const std::string& path) {
  return !path.empty() && name.compare(0, path.size(), path) == 0 &&
         (name.size() == path.size() || name[path.size()] == '.');
}

bool starts_with(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

// The text that, taken off (or put before) every name of the file, makes most of them the model's; "" where none does.
// So a file that was saved through a wrapper says how to load it.
std::string prefix_hint(const std::vector<std::string>& unexpected, const std::vector<std::string>& missing) {
  if (unexpected.empty() || missing.empty()) return "";
  for (const std::string& wanted : missing) {
    const std::string& given = unexpected.front();
    if (given.size() <= wanted.size() || given.compare(given.size() - wanted.size(), wanted.size(), wanted) != 0) {
      continue;
    }
    const std::string prefix = given.substr(0, given.size() - wanted.size());
    const auto fits = [&](const std::string& name) { return starts_with(name, prefix); };
    if (prefix.back() == '.' && std::all_of(unexpected.begin(), unexpected.end(), fits)) {
      return format("; hint: every unexpected name begins with \"{}\": load with strip_prefix = \"{}\"", prefix,
                    prefix);
    }
  }
  return "";
}

// Semicolons part what stands on lines of its own: a program prints an error as one line.
std::string list(const char* title, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string text = format(";\n  {} ({}):", title, lines.size());
  for (std::size_t i = 0; i < lines.size(); ++i) text += (i > 0 ? ";\n    " : "\n    ") + lines[i];
  return text;
}

constexpr const char* kGridKey = "grid.";  // and the table's name

// The grid of a file's table of `tokens` positions, which becomes the model's `table`. Throws IoError.
Grid source_grid(const PositionTable& table, std::int64_t tokens, const LoadOptions& options,
                 const std::optional<Grid>& stored, const std::string& origin) {
  const std::int64_t patches = tokens - table.prefix;
  const auto wrong = [&](const std::string& why) {
    return IoError(format("[load_weights] {}: {} has {} positions, {} of them of no patch; {}", origin, table.name,
                          tokens, table.prefix, why));
  };
  if (stored && options.grid && *stored != *options.grid) {
    throw wrong(format("the file says that its grid is {}, not {}", to_string(*stored), to_string(*options.grid)));
  }
  if (const std::optional<Grid>& grid = stored ? stored : options.grid) {
    if ((*grid)[0] * (*grid)[1] != patches) throw wrong(format("that is no grid of {}", to_string(*grid)));
    return *grid;
  }
  const auto side =
      static_cast<std::int64_t>(std::llround(std::sqrt(static_cast<double>(std::max<std::int64_t>(patches, 0)))));
  const bool may_be_another = patches == table.patches() && table.grid[0] != table.grid[1];
  if (patches < 1 || side * side != patches || may_be_another) {
    throw wrong(
        "the file does not say of which grid, rows x columns, and none is the only one possible: name it "
        "(--init-grid)");
  }
  return {side, side};
}

LoadReport load(Module& model, std::vector<WeightSource> sources, const LoadOptions& options, const std::string& origin,
                const std::map<std::string, std::string>& metadata = {}) {
  std::vector<std::string> missing, unexpected, wrong;
  if (!options.strip_prefix.empty()) {
    std::vector<WeightSource> stripped;
    for (WeightSource& source : sources) {
      if (!starts_with(source.name, options.strip_prefix)) {
        unexpected.push_back(source.name);
        continue;
      }
      source.name = source.name.substr(options.strip_prefix.size());
      stripped.push_back(std::move(source));
    }
    sources = std::move(stripped);
  }
  if (options.convert) sources = options.convert(std::move(sources));

  const NamedTensors targets = model.state();
  std::map<std::string, const WeightSource*> given;
  for (const WeightSource& source : sources) {
    if (!given.emplace(source.name, &source).second) {
      throw IoError(format("[load_weights] {}: the name {} is given twice", origin, source.name));
    }
  }
  LoadReport report;
  struct Step {
    Tensor target;
    const WeightSource* source;
    const PositionTable* table = nullptr;  // to resize it to
    Grid from = {0, 0};
  };
  std::vector<Step> plan;
  for (const auto& [name, target] : targets) {
    const auto found = given.find(name);
    const bool may_differ = is_below(name, options.allow_other_head);
    const bool fits = found != given.end() && found->second->shape == target.shape();
    const auto table = std::find_if(options.positions.begin(), options.positions.end(),
                                    [&, &path = name](const PositionTable& one) { return one.name == path; });
    const bool is_table = table != options.positions.end() && found != given.end() && found->second->shape.dim() == 3 &&
                          found->second->shape[0] == 1 && found->second->shape[2] == target.size(2);
    if (is_table) {
      Step step{.target = target, .source = found->second};
      step.from = source_grid(*table, found->second->shape[1], options, stored_grid(metadata, name), origin);
      if (step.from != table->grid) {
        step.table = &*table;
        report.resized.push_back(format("{}: {} -> {}", name, to_string(step.from), to_string(table->grid)));
      }
      plan.push_back(step);
    } else if (fits) {
      plan.push_back({.target = target, .source = found->second});
    } else if (may_differ) {
      report.kept.push_back(name);
    } else if (found == given.end()) {
      missing.push_back(name);
    } else {
      wrong.push_back(format("{}: the model has {}, the file {}", name, to_string(target.shape()),
                             to_string(found->second->shape)));
    }
    if (found != given.end()) given.erase(found);
  }
  for (const WeightSource& source : sources) {
    if (given.count(source.name) != 0 && !is_below(source.name, options.allow_other_head)) {
      unexpected.push_back(source.name);
    }
  }
  if (!missing.empty() || !unexpected.empty() || !wrong.empty()) {
    throw IoError(format("[load_weights] {} does not fit the model; nothing was loaded{}{}{}{}", origin,
                         prefix_hint(unexpected, missing), list("missing", missing), list("unexpected", unexpected),
                         list("of another shape", wrong)));
  }

  // Read everything before the first parameter changes: a damaged file must not leave half of itself behind.
  std::vector<std::pair<Tensor, Tensor>> copies;
  for (auto& [target, source, table, from] : plan) {
    Tensor value = source->load();
    if (table != nullptr && is_floating(value.dtype())) {
      value = resize_positions(value, table->prefix, from, table->grid);
    }
    if (is_floating(value.dtype()) != is_floating(target.dtype()) || value.shape() != target.shape()) {
      throw IoError(
          format("[load_weights] {}: {} is {}; expected {}", origin, source->name, describe(value), describe(target)));
    }
    copies.emplace_back(target, std::move(value));
  }
  const NoGradGuard no_grad;
  for (auto& [target, value] : copies) target.copy_(value.to(target.device()));
  report.loaded = copies.size();
  return report;
}

}  // namespace

LoadReport load_weights(Module& model, const std::string& path, const LoadOptions& options) {
  return load_weights(model, SafetensorsFile(path), options);
}

LoadReport load_weights(Module& model, const SafetensorsFile& file, const LoadOptions& options) {
  std::vector<WeightSource> sources;
  for (const SafetensorsEntry& entry : file.entries()) {
    sources.push_back({entry.name, entry.shape, [&file, name = entry.name] { return file.load(name); }});
  }
  return load(model, std::move(sources), options, file.path(), file.metadata());
}

LoadReport load_state(Module& model, const NamedTensors& state, const LoadOptions& options, const std::string& origin) {
  std::vector<WeightSource> sources;
  for (const auto& [name, tensor] : state) {
    sources.push_back({name, tensor.shape(), [tensor = tensor] { return tensor.detach(); }});
  }
  return load(model, std::move(sources), options, origin);
}

std::map<std::string, std::string> grid_metadata(const std::vector<PositionTable>& tables) {
  std::map<std::string, std::string> metadata;
  for (const PositionTable& table : tables) metadata.emplace(kGridKey + table.name, to_string(table.grid));
  return metadata;
}

std::optional<Grid> stored_grid(const std::map<std::string, std::string>& metadata, const std::string& name) {
  const auto found = metadata.find(kGridKey + name);
  if (found == metadata.end()) return std::nullopt;
  return parse_grid(found->second);
}

void save_weights(const std::string& path, const Module& model, const std::map<std::string, std::string>& metadata) {
  save_safetensors(path, model.state(), metadata);
}

}  // namespace polygrad

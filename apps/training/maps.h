// Attention maps of a run: P of chosen layers and heads over the probed samples, as numbers and as pictures
// (docs/attention.md, docs/plots.md).
//
// Where this stands: beside probes.h, above ops/attention.h (attention_map), heat_map.h and pictures.h. The trainer
// writes maps at each probe; draw_maps draws what it left. As a probe does, this reads: a run with maps ends with the
// weights of one without.
//
//   RUN/maps/step-000500/layer-12_head-6_mean.npy    f32; queries are rows, keys are columns, both from 0, and where
//                                                    the model has a class token that is token 0
//                                            .gp     draws .svg from it
//   reduce "mean"   (N, N): the mean over the probed samples
//          "none"   (N, N): the first probed sample's
//          "query"  (samples, rows, columns): of up to 8 samples, what the class token's query makes of each patch, as
//                   the patches lie in the picture; where the head reads no class token, the mean over all queries.
//                   .png shows it over the pictures. Of texts: (samples, 1, N), drawn as a heat map
// Hidden pairs (padding) have P = 0 and count in means over samples; hidden queries do not count in means over queries.
// The sequences of a pair count as samples of their own.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "apps/training/checkpoint.h"
#include "apps/training/config.h"
#include "models/model.h"

namespace polygrad {

enum class MapReduce : std::uint8_t { mean, none, query };

struct MapRequest {
  std::int64_t layer = 1;  // from 1
  std::int64_t head = 0;   // from 1; 0: the mean over the heads
  MapReduce reduce = MapReduce::mean;
  std::string name() const;  // "layer-12_head-6_mean", "layer-12_head-mean_query"
};

// probe.maps, for this model. Throws ConfigError naming the entry: a layer or head that the model does not have, an
// unknown word or key, an entry twice.
std::vector<MapRequest> map_requests(const Config& config, const Model& model);

// How the keys of an attention lie in the picture.
struct TokenGrid {
  std::int64_t first = 0;              // tokens in front of the patches
  std::int64_t rows = 0, columns = 0;  // 0: no picture, a text
  bool class_query = false;            // token 0 is what the head reads
};
TokenGrid token_grid(const Model& model, const Preprocessing& input);

// One map as `request` says, on the CPU, of shape as above; `input` is a batch as the model takes it. Memory: one
// sample's P of one head at a time, beside the sums. Undefined where a stop cut it off (it is heeded between layers).
Tensor compute_map(const Model& model, const Tensor& input, const MapRequest& request, const TokenGrid& grid,
                   const std::stop_token& stop = {});

// Writes all of them into RUN/maps/step-NNNNNN/; false where a stop cut it off. Throws IoError.
bool write_maps(const std::string& run, std::int64_t step, const Model& model, const Tensor& input,
                const Preprocessing& preprocessing, const std::vector<MapRequest>& requests,
                const std::stop_token& stop = {});

// Removes the maps of later steps than that, for a run that goes on from there. Throws IoError.
void discard_maps_after(const std::string& run, std::int64_t step);

// Draws those heat maps of a run that have no picture yet; "" or why not (as run_gnuplot).
std::string draw_maps(const std::string& run);

}  // namespace polygrad

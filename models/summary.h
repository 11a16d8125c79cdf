// Summary: what a model is made of and what a forward costs, as a table.
//
// Operations counted are those of matrix products, 2 for each multiply-add; norms, activations and additions are not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/shape.h"

namespace polygrad {

class Model;
class Module;

struct LayerSummary {
  std::string path;  // "blocks.0.attn.qkv"
  Shape output;
  std::uint64_t parameters = 0;
  std::int64_t macs = 0;  // multiply-adds of its matrix products
};

// 2 x the multiply-adds of one forward on `batch` images. A training step is counted as three of these.
double model_flops(const Model& model, std::int64_t batch);

// The layer table with totals, for people.
std::string summary_table(const Model& model, std::int64_t batch);

// "blocks.3.attn.qkv.weight" -> "blocks.*.attn.qkv.weight": what layers have in common.
std::string parameter_kind(const std::string& path);

// One line for each kind of parameter, in the model's order: how many tensors and elements, their mean, standard
// deviation, smallest and largest value. For a fresh model this shows its initialisation.
std::string parameter_table(const Module& model);

// One line for each attention layer: path, heads, phi, divisor, the path taken and why. Equal neighbours share a line.
std::string attention_report(const Model& model);

}  // namespace polygrad

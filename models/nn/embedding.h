// Embedding: a table of rows, read by number.
#pragma once

#include "models/nn/module.h"
#include "ops/index.h"

namespace polygrad {

class Embedding : public Module {
 public:
  Embedding(std::int64_t rows, std::int64_t width, const Init& init)
      : weight_(parameter("weight", {rows, width}, init)) {}
  // ids i64 of any shape -> (ids..., width). Throws IndexError for an id outside the table.
  Tensor forward(const Tensor& ids) const {
    const Scope scope(name());
    return embedding(weight_, ids);
  }
  const Tensor& weight() const { return weight_; }

 private:
  const Tensor& weight_;
};

}  // namespace polygrad

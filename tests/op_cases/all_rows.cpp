#include <iterator>

#include "tests/op_cases/op_case.h"

namespace polygrad::testing {

std::vector<OpRow> all_rows() {
  std::vector<OpRow> all;
  for (const auto& family :
       {unary_rows, binary_rows, reduce_rows, matmul_rows, view_rows, copy_rows, index_rows, softmax_rows, norm_rows,
        attention_rows, dropout_rows, patch_rows, loss_rows, pre_norm_rows}) {
    std::vector<OpRow> rows = family();
    all.insert(all.end(), std::make_move_iterator(rows.begin()), std::make_move_iterator(rows.end()));
  }
  return all;
}

}  // namespace polygrad::testing

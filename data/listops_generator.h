// The generator of the Long Range Arena's ListOps: random trees of 501 to 1999 tokens, each once.
//
// Where this stands: above listops.h. Source: SPEC of the benchmark's own script, lra_benchmarks/data/listops.py: an
// operator with probability 1/4, else a digit, always a digit at depth 10; 2 to 10 arguments; a tree is kept where its
// length fits. Candidate i is drawn from (seed, i) alone, so the files depend neither on the threads nor on the
// machine.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "engine/generator.h"

namespace polygrad {

struct ListOpsTree {
  std::string ids;  // one byte a token, as listops_ids
  int value = 0;    // 0 ... 9
  int depth = 0;    // of the deepest digit; the root has depth 1
};

// One candidate; nothing where its length is 500 or less, or 2000 or more.
std::optional<ListOpsTree> draw_listops_tree(Generator& generator);
// The expression as the files have it: nested pairs "( ( ( [MAX 2 ) 9 ) ] )". `ids` is a whole expression (else
// ValueError).
std::string listops_text(std::string_view ids);

// Writes basic_{train,val,test}.tsv (96, 2, 2 % of `count` trees, which is at least 50) into `folder`, which is made.
// `progress` (may be empty) hears how many trees there are. Throws ValueError, IoError.
void write_listops(const std::string& folder, std::int64_t count, std::uint64_t seed,
                   const std::function<void(std::int64_t)>& progress = {});

}  // namespace polygrad

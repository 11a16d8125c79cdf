// The Long Range Arena: its five tasks by name, and their parts.
//
// Where this stands: above listops.h, imdb.h, text_pairs.h, grey_pixels.h and pathfinder.h; open_data (catalog.h) comes
// here for the names lra_*. Source: Tay et al., arXiv 2011.04006, with the splits of Xiong et al. (Nystromformer).
//
//   task        files                                          val                     vocabulary
//   listops     basic_{train,val,test}.tsv                     the file                listops: 16 ids and padding
//   text        {train,test}/{pos,neg}/*.txt                   a tenth of train        bytes: 1 ... 256
//   retrieval   new_aan_pairs.{train,eval,test}.tsv            the file eval           bytes, two documents
//   image       CIFAR-10, grey                                 a tenth of train        grey: 0 ... 255
//   pathfinder  curv_contour_length_14/{imgs,metadata}         a tenth; test: a tenth  grey
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/catalog.h"

namespace polygrad {

struct LraTask {
  std::string name;         // "listops"
  std::int64_t length = 0;  // tokens a model takes
  std::int64_t towers = 1;  // sequences of a sample
  std::string vocabulary;   // "listops", "bytes", "grey"
  std::string hint;         // where its data come from, for who has none
  std::string data_name() const { return "lra_" + name; }
};

const std::vector<LraTask>& lra_tasks();
// Of "listops" or "lra_listops"; null where there is none.
const LraTask* find_lra_task(const std::string& name);

// What open_data does for the names lra_*. `only` "train", "val" or "test": no other part is opened, and no other
// part's files need be there.
DataParts open_lra(const DataOptions& options, const std::string& only = "");

}  // namespace polygrad

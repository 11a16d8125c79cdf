// Fashion-MNIST: 60,000 training and 10,000 test images of ten kinds of clothes, grey, 28 x 28.
//
// Where this stands: a thin layer on idx.h. Debian's package dataset-fashion-mnist puts the files where no flag is
// needed. Source: Xiao, Rasul, Vollgraf, arXiv 1708.07747.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/idx.h"

namespace polygrad {

// Where Debian's package puts the four files.
extern const char* const kFashionMnistRoot;

// The ten names, in the order of the labels.
const std::vector<std::string>& fashion_mnist_classes();

// The training or the test images of `root` (empty: kFashionMnistRoot). Throws DataError with the path tried, the
// layout expected and how to get the data.
std::shared_ptr<IdxDataset> open_fashion_mnist(const std::string& root, bool train);
// Any other data set with MNIST's four file names; classes are "0", "1", ...
std::shared_ptr<IdxDataset> open_idx_folder(const std::string& root, bool train);

}  // namespace polygrad

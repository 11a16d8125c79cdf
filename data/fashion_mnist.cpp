#include "data/fashion_mnist.h"

#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

const char* const kFashionMnistRoot = "/usr/share/datasets/fashion-mnist";

const std::vector<std::string>& fashion_mnist_classes() {
  static const std::vector<std::string> names = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                                                 "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
  return names;
}

namespace {

std::shared_ptr<IdxDataset> open_folder(const std::string& name, const std::string& root, bool train,
                                        std::vector<std::string> class_names, const std::string& hint) {
  const std::string part = train ? "train" : "t10k";
  const std::string images = find_idx_file(root, part + "-images-idx3-ubyte", hint);
  const std::string labels = find_idx_file(root, part + "-labels-idx1-ubyte", hint);
  return std::make_shared<IdxDataset>(format("{} {}", name, train ? "train" : "test"), images, labels,
                                      std::move(class_names));
}

}  // namespace

std::shared_ptr<IdxDataset> open_fashion_mnist(const std::string& root, bool train) {
  return open_folder("fashion_mnist", root.empty() ? kFashionMnistRoot : root, train, fashion_mnist_classes(),
                     format("install it with: apt-get install dataset-fashion-mnist (it lies in {} then), or name its "
                            "folder with --data DIR",
                            kFashionMnistRoot));
}

std::shared_ptr<IdxDataset> open_idx_folder(const std::string& root, bool train) {
  if (root.empty()) throw DataError("[data] the data set idx has no place of its own; name its folder with --data DIR");
  return open_folder("idx", root, train, {}, "name the folder that holds them with --data DIR");
}

}  // namespace polygrad

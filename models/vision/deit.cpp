#include "models/vision/deit.h"

namespace polygrad {

VitConfig deit_config(VitConfig base) {
  base.class_token_std = 0.02;
  return base;
}

}  // namespace polygrad

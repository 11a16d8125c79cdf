// DeiT: the vision transformer, trained another way. (Touvron et al., 2021.) The architecture is vit.h's; the class
// token starts at N(0, 0.02^2), as the authors' code of the time had it, instead of close to zero.
#pragma once

#include "models/vision/vit.h"

namespace polygrad {

// `base` with DeiT's start.
VitConfig deit_config(VitConfig base);

}  // namespace polygrad

// The host's own Eigen, JSON and stb, each used for real.
#pragma once

#include <vector>

std::vector<float> own_product(const std::vector<float>& a, const std::vector<float>& b, int m, int k, int n);
bool own_json_round_trip();
bool own_image_decodes();

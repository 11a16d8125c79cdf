// gnuplot: the program that draws, found by PATH.
//
// Where this stands: below chart.h (curves) and heat_map.h (matrices), which write the scripts. A script NAME.gp is
// complete: `gnuplot NAME.gp` in its folder draws NAME.svg beside it, whatever the locale.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace polygrad {

// Draws scripts of `folder` with one call. Returns "" or why there are no pictures ("gnuplot is not installed; ...").
std::string run_gnuplot(const std::string& folder, const std::vector<std::string>& scripts);

// A text in gnuplot's double quotes, to be set with `noenhanced`: what is special in it is escaped.
std::string gnuplot_text(std::string_view text);
// ValueError for a name that is no file's.
void check_picture_name(const std::string& name);

}  // namespace polygrad

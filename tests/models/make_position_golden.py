#!/usr/bin/env python3
"""Writes position_golden.h beside this script: position tables on other grids, resized by timm.

    python3 make_position_golden.py            (needs torch and timm; the result is committed, so the tests need neither)

Of each result the sum of all values and a few of them are kept. position_test.cpp makes the same tables.
"""
import os

import timm
import torch
from timm.layers import resample_abs_pos_embed

DIM = 3
SOURCES = [(14, 14), (2, 8), (3, 5)]
TARGETS = [(16, 16), (4, 4), (5, 3)]
PICKED = 12


def table(prefix, grid):
    tokens = prefix + grid[0] * grid[1]
    values = [((i * 37) % 101) / 50 - 1 for i in range(tokens * DIM)]
    return torch.tensor(values, dtype=torch.float64).float().reshape(1, tokens, DIM)


def main():
    lines = [
        f"// Made by make_position_golden.py with timm {timm.__version__} and torch {torch.__version__}; not edited by hand.",
        "#pragma once",
        "",
        "#include <cstdint>",
        "",
        "namespace polygrad::testing {",
        "",
        "// Values number 0, stride, 2 x stride ... of the resized table, and the sum of all.",
        "struct PositionGolden {",
        "  std::int64_t prefix, from[2], to[2], stride;",
        "  double sum;",
        f"  double picked[{PICKED}];",
        "};",
        "",
        "constexpr PositionGolden kPositionGolden[] = {",
    ]
    for prefix in (0, 1, 2):
        for source in SOURCES:
            for target in TARGETS:
                result = resample_abs_pos_embed(table(prefix, source), new_size=list(target), old_size=list(source),
                                                num_prefix_tokens=prefix).flatten().double()
                stride = (result.numel() - 1) // (PICKED - 1)
                picked = ", ".join(f"{result[i * stride]:.7f}" for i in range(PICKED))
                lines.append(f"    {{{prefix}, {{{source[0]}, {source[1]}}}, {{{target[0]}, {target[1]}}}, {stride}, "
                             f"{result.sum():.6f}, {{{picked}}}}},")
    lines += ["};", "", "}  // namespace polygrad::testing", ""]
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "position_golden.h"), "w") as file:
        file.write("\n".join(lines))


main()

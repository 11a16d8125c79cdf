#!/usr/bin/env python3
"""polygrad_bench gemm, in PyTorch. See peer.py."""

import time

import peer


def main():
    parser = peer.parser(__doc__)
    for name, value in (("m", 8224), ("k", 192), ("n", 576)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--trans-a", action="store_true")
    parser.add_argument("--trans-b", action="store_true")
    arguments = parser.parse_args()
    peer.enter_environment(arguments)
    import torch

    peer.prepare(torch, arguments)

    def factor(rows, cols, turned):
        return torch.randn(cols, rows).t() if turned else torch.randn(rows, cols)

    a = factor(arguments.m, arguments.k, arguments.trans_a)
    b = factor(arguments.k, arguments.n, arguments.trans_b)

    def subject():
        with torch.no_grad():
            start = time.perf_counter()
            torch.mm(a, b)
            return time.perf_counter() - start

    flops = 2.0 * arguments.m * arguments.k * arguments.n
    measured = peer.measure_pairs(peer.Ceiling(torch), flops, arguments.pairs, subject)
    peer.report(torch, "gemm", arguments, {"ms": 1e3 * measured["seconds"], **measured})


if __name__ == "__main__":
    main()

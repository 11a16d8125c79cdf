#!/usr/bin/env python3
"""polygrad_bench gemm, in PyTorch. See peer.py."""

import time

import peer


def main():
    parser = peer.parser(__doc__)
    peer.add_sizes(parser, m=8224, k=192, n=576)
    parser.add_argument("--trans-a", action="store_true")
    parser.add_argument("--trans-b", action="store_true")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    arguments = parser.parse_args()
    torch, product = peer.torch_ready(arguments)

    def factor(rows, cols, turned):
        result = torch.randn(cols, rows).t() if turned else torch.randn(rows, cols)
        return result.bfloat16() if arguments.dtype == "bf16" else result

    a = factor(arguments.m, arguments.k, arguments.trans_a)
    b = factor(arguments.k, arguments.n, arguments.trans_b)

    def subject():
        with torch.no_grad():
            start = time.perf_counter()
            torch.mm(a, b)
            return time.perf_counter() - start

    flops = 2.0 * arguments.m * arguments.k * arguments.n
    measured = peer.measure_pairs(product, flops, arguments, subject)
    peer.report("pytorch", torch.__version__, "gemm", arguments, {"ms": 1e3 * measured["seconds"], **measured})


if __name__ == "__main__":
    main()

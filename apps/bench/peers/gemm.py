#!/usr/bin/env python3
"""polygrad_bench gemm, in PyTorch. See peer.py."""

import time

import peer


def main():
    parser = peer.parser(__doc__)
    peer.add_sizes(parser, m=8224, k=192, n=576)
    parser.add_argument("--trans-a", action="store_true")
    parser.add_argument("--trans-b", action="store_true")
    parser.add_argument("--dtype", choices=["f32", "bf16", "f16"], default="f32")
    peer.add_device(parser)
    arguments = parser.parse_args()
    torch, product = peer.torch_ready(arguments, arguments.dtype)

    def factor(rows, cols, turned):
        shape = (cols, rows) if turned else (rows, cols)
        result = torch.randn(shape, device=arguments.device).to(peer.torch_dtype(torch, arguments.dtype))
        return result.t() if turned else result

    a = factor(arguments.m, arguments.k, arguments.trans_a)
    b = factor(arguments.k, arguments.n, arguments.trans_b)

    def subject():
        with torch.no_grad():
            start = time.perf_counter()
            torch.mm(a, b)
            return time.perf_counter() - start

    if arguments.device == "cuda":
        batches = peer.Batches(torch, lambda: torch.mm(a, b))

        def subject():
            with torch.no_grad():
                return batches()

    flops = 2.0 * arguments.m * arguments.k * arguments.n
    measured = peer.measure_pairs(product, flops, arguments, subject)
    peer.report("pytorch", torch.__version__, "gemm", arguments, {"ms": 1e3 * measured["seconds"], **measured})


if __name__ == "__main__":
    main()

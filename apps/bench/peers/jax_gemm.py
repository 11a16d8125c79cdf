#!/usr/bin/env python3
"""polygrad_bench gemm, in JAX. See peer.py."""

import time

import peer


def main():
    parser = peer.parser(__doc__)
    peer.add_sizes(parser, m=8224, k=192, n=576)
    parser.add_argument("--trans-a", action="store_true")
    parser.add_argument("--trans-b", action="store_true")
    arguments = parser.parse_args()
    jax, product = peer.jax_ready(arguments)

    def factor(seed, rows, cols, turned):
        return jax.random.normal(jax.random.key(seed), (cols, rows) if turned else (rows, cols))

    a = factor(1, arguments.m, arguments.k, arguments.trans_a)
    b = factor(2, arguments.k, arguments.n, arguments.trans_b)
    multiply = jax.jit(lambda x, y: (x.T if arguments.trans_a else x) @ (y.T if arguments.trans_b else y))

    def subject():
        start = time.perf_counter()
        multiply(a, b).block_until_ready()
        return time.perf_counter() - start

    flops = 2.0 * arguments.m * arguments.k * arguments.n
    measured = peer.measure_pairs(product, flops, arguments, subject)
    peer.report("jax", jax.__version__, "gemm", arguments, {"ms": 1e3 * measured["seconds"], **measured})


if __name__ == "__main__":
    main()

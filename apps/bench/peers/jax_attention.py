#!/usr/bin/env python3
"""polygrad_bench attention, in JAX: forward and gradient in one jit, written as attention.py is. See peer.py."""

import time

import peer


def main():
    parser = peer.parser(__doc__)
    peer.add_sizes(parser, batch=4, heads=2, tokens=4096, head_dim=32)
    parser.add_argument("--phi", default="x3")
    parser.add_argument("--scale", default="auto")
    parser.add_argument("--linear", action="store_true")
    arguments = parser.parse_args()
    if arguments.linear and arguments.phi != "x":
        parser.error("--linear is for --phi x")
    jax, product = peer.jax_ready(arguments)
    np = jax.numpy
    batch, heads, tokens, width = arguments.batch, arguments.heads, arguments.tokens, arguments.head_dim
    phi = peer.activation(arguments.phi, np, lambda s: jax.nn.gelu(s, approximate=False), jax.nn.elu)
    divisor = peer.divisor(arguments.scale, arguments.phi, tokens)
    qkv = jax.random.normal(jax.random.key(1), (batch, tokens, 3, heads, width))
    gradient = jax.random.normal(jax.random.key(2), (batch, tokens, heads * width))

    def attend(packed):
        q, k, v = np.transpose(packed, (2, 0, 3, 1, 4))
        if arguments.linear:
            out = q @ (np.swapaxes(k, -2, -1) @ v) * (width**-0.5 / divisor)
        else:
            scores = (q * width**-0.5) @ np.swapaxes(k, -2, -1)
            weights = jax.nn.softmax(scores, -1) if phi is None else phi(scores) * (1 / divisor)
            out = weights @ v
        return np.swapaxes(out, 1, 2).reshape(batch, tokens, heads * width)

    @jax.jit
    def both(packed, upper):
        out, pull = jax.vjp(attend, packed)
        return out, pull(upper)[0]

    def subject():
        start = time.perf_counter()
        jax.block_until_ready(both(qkv, gradient))
        return time.perf_counter() - start

    before = peer.status_mib("VmHWM")
    subject()
    extra = peer.status_mib("VmHWM") - before  # the compiler's memory is in it
    flops = 12.0 * batch * heads * tokens * width * (width if arguments.linear else tokens)
    measured = peer.measure_pairs(product, flops, arguments, subject)
    values = {"ms": 1e3 * measured["seconds"], **measured, "peak_extra_mib": extra}
    peer.report("jax", jax.__version__, "attention", arguments, values)


if __name__ == "__main__":
    main()

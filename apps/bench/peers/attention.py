#!/usr/bin/env python3
"""polygrad_bench attention, in PyTorch: the map is materialised, as PyTorch has no fused form for phi other than softmax
(--sdpa: scaled_dot_product_attention, for softmax). --linear: q (k^T v) by hand, for phi = x. See peer.py."""

import statistics
import time

import peer


def main():
    parser = peer.parser(__doc__)
    peer.add_sizes(parser, batch=4, heads=2, tokens=4096, head_dim=32)
    parser.add_argument("--phi", default="x3")
    parser.add_argument("--scale", default="auto")
    parser.add_argument("--sdpa", action="store_true")
    parser.add_argument("--linear", action="store_true")
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    if arguments.sdpa and arguments.phi != "softmax":
        parser.error("--sdpa computes softmax")
    if arguments.linear and arguments.phi != "x":
        parser.error("--linear is for --phi x")
    torch, product = peer.torch_ready(arguments)
    functional = torch.nn.functional
    batch, heads, tokens, width = arguments.batch, arguments.heads, arguments.tokens, arguments.head_dim
    phi = peer.activation(arguments.phi, torch, functional.gelu, functional.elu)
    divisor = peer.divisor(arguments.scale, arguments.phi, tokens)
    qkv = torch.randn(batch, tokens, 3, heads, width, requires_grad=True)
    gradient = torch.randn(batch, tokens, heads * width)

    def attend(packed):
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        if arguments.sdpa:
            out = functional.scaled_dot_product_attention(q, k, v)
        elif arguments.linear:
            out = q @ (k.transpose(-2, -1) @ v) * (width**-0.5 / divisor)
        else:
            scores = (q * width**-0.5) @ k.transpose(-2, -1)
            weights = scores.softmax(-1) if phi is None else phi(scores) * (1 / divisor)
            out = weights @ v
        return out.transpose(1, 2).reshape(batch, tokens, heads * width)

    if arguments.compile:
        attend = torch.compile(attend)
    forwards, backwards = [], []

    def subject():
        qkv.grad = None
        start = time.perf_counter()
        out = attend(qkv)
        middle = time.perf_counter()
        out.backward(gradient)
        end = time.perf_counter()
        forwards.append(middle - start)
        backwards.append(end - middle)
        return end - start

    before = peer.status_mib("VmHWM")
    subject()
    extra = peer.status_mib("VmHWM") - before
    flops = 12.0 * batch * heads * tokens * width * (width if arguments.linear else tokens)
    measured = peer.measure_pairs(product, flops, arguments, subject)
    times = {"forward_ms": 1e3 * statistics.median(forwards), "backward_ms": 1e3 * statistics.median(backwards)}
    peer.report("pytorch", torch.__version__, "attention", arguments, {**times, **measured, "peak_extra_mib": extra})


if __name__ == "__main__":
    main()

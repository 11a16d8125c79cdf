#!/usr/bin/env python3
"""polygrad_bench attention, in PyTorch: the map is materialised, as PyTorch has no fused form for phi other than softmax
(--sdpa: scaled_dot_product_attention, for softmax; --backend: by one of its kernels). --linear: q (k^T v) by hand, for phi = x. See peer.py."""

import contextlib
import statistics
import time

import peer


def kernel_of(torch, backend):
    """While it lives, scaled_dot_product_attention computes with this kernel, or fails."""
    if not backend:
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel({"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
                        "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}[backend])


def main():
    parser = peer.parser(__doc__)
    peer.add_sizes(parser, batch=4, heads=2, tokens=4096, head_dim=32)
    parser.add_argument("--phi", default="x3")
    parser.add_argument("--scale", default="auto")
    parser.add_argument("--sdpa", action="store_true")
    parser.add_argument("--linear", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--precision", choices=["f32", "bf16", "f16"], default="f32")
    parser.add_argument("--forward-only", action="store_true")
    parser.add_argument("--backend", choices=["flash", "cudnn", "efficient", "math"], help="with --sdpa (default: its own choice)")
    peer.add_device(parser)
    arguments = parser.parse_args()
    if arguments.sdpa and arguments.phi != "softmax":
        parser.error("--sdpa computes softmax")
    if arguments.backend and not arguments.sdpa:
        parser.error("--backend is for --sdpa")
    if arguments.linear and arguments.phi != "x":
        parser.error("--linear is for --phi x")
    torch, product = peer.torch_ready(arguments, arguments.precision)
    functional = torch.nn.functional
    batch, heads, tokens, width = arguments.batch, arguments.heads, arguments.tokens, arguments.head_dim
    phi = peer.activation(arguments.phi, torch, functional.gelu, functional.elu)
    divisor = peer.divisor(arguments.scale, arguments.phi, tokens)
    like = {"device": arguments.device, "dtype": peer.torch_dtype(torch, arguments.precision)}
    qkv = torch.randn(batch, tokens, 3, heads, width, **like, requires_grad=not arguments.forward_only)
    gradient = torch.randn(batch, tokens, heads * width, **like)

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

    def run(mark):
        """One run; its three moments, taken by `mark`."""
        qkv.grad = None
        start = mark()
        out = attend(qkv)
        middle = mark()
        if not arguments.forward_only:
            out.backward(gradient)
        return start, middle, mark()

    def subject():
        start, middle, end = run(time.perf_counter)
        forwards.append(middle - start)
        backwards.append(end - middle)
        return end - start

    flops = (4.0 if arguments.forward_only else 12.0) * batch * heads * tokens * width
    flops *= width if arguments.linear else tokens
    if arguments.device == "cuda":
        front, back = peer.Spans(torch), peer.Spans(torch)

        def run_there():
            start, middle, end = run(front.mark)
            front.add(start, middle)
            back.add(middle, end)

        with kernel_of(torch, arguments.backend):
            run_there()
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated() / 2**20
            torch.cuda.reset_peak_memory_stats()
            run_there()
            extra = peer.cuda_mib(torch) - before
            batches = peer.Batches(torch, run_there)
            front.mean(), back.mean()

            def warm_up():
                batches(), front.mean(), back.mean()

            def subject_there():
                seconds = batches()
                forwards.append(front.mean())
                backwards.append(back.mean())
                return seconds

            measured = peer.measure_pairs(product, flops, arguments, subject_there, warm_up)
    else:
        before = peer.status_mib("VmHWM")
        subject()
        extra = peer.status_mib("VmHWM") - before
        measured = peer.measure_pairs(product, flops, arguments, subject)
    times = {"forward_ms": 1e3 * statistics.median(forwards), "backward_ms": 1e3 * statistics.median(backwards)}
    peer.report("pytorch", torch.__version__, "attention", arguments, {**times, **measured, "peak_extra_mib": extra})


if __name__ == "__main__":
    main()

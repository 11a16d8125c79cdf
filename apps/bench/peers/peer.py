"""What the peers' scripts share: command line, the peer's own ceiling, measurements in pairs or in turns, the JSON line.

The scripts beside this one run the work of polygrad_bench, with the same shapes and the same operation counts, on the
CPU in another framework:

    python3 apps/bench/peers/gemm.py          --m 8224 --k 192 --n 576 [--trans-a] [--trans-b]
    python3 apps/bench/peers/attention.py     --phi x3 --batch 4 --heads 2 --tokens 4096 --head-dim 32 [--sdpa] [--compile]
    python3 apps/bench/peers/vit_step.py      --phi x3 --image 64 --patch 4 --classes 200 --batch 32 --scale 16 [--compile]
    python3 apps/bench/peers/jax_gemm.py, jax_attention.py, jax_vit_step.py      the same in JAX, compiled by jit

Common options: --threads N (default: the cores this process may use), --pairs N, --turns (one measurement for each line
of stdin, as polygrad_bench), --environment default|best|... (environment.py). Each script prints one JSON line: the
bench, the peer and its version, the environment, the threads, its times, its peak memory, and `ceiling_gflops`: the rate
of a 2048 x 2048 x 2048 product (f32) in the same process, measured in turns with the subject.
run.sh finds an interpreter that has the frameworks, or makes one; `make bench` runs the scripts in turns with ours.
"""

import argparse
import json
import os
import statistics
import sys
import time

import environment

SIZE = 2048  # of the ceiling's matrices


def parser(about):
    result = argparse.ArgumentParser(description=about)
    result.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    result.add_argument("--pairs", type=int, default=11)
    result.add_argument("--turns", action="store_true")
    result.add_argument("--environment", default="best")
    return result


def add_sizes(arguments, **sizes):
    for name, value in sizes.items():
        arguments.add_argument("--" + name.replace("_", "-"), type=int, default=value)


def measure_ceiling(product, target):
    """GFLOP/s of the products that fill about `target` seconds."""
    spent, products = 0.0, 0
    while products == 0 or spent < target:
        start = time.perf_counter()
        product()
        spent += time.perf_counter() - start
        products += 1
    return 2e-9 * SIZE**3 * products / spent


def measure_pairs(product, flops, arguments, subject):
    """As measure_pairs of apps/bench/ceiling.h. `product` makes one product of the ceiling; `subject` returns the seconds
    that count."""
    product()
    subject()
    slice_seconds = min(1.0, max(0.1, subject() / 4))
    pairs = []

    def measure():
        before = measure_ceiling(product, slice_seconds / 2)
        spent, runs, start = 0.0, 0, time.perf_counter()
        while runs == 0 or time.perf_counter() - start < slice_seconds:
            spent += subject()
            runs += 1
        after = measure_ceiling(product, slice_seconds / 2)
        rate, limit = 1e-9 * flops * runs / spent, 2 / (1 / before + 1 / after)
        return {"seconds": spent / runs, "gflops": rate, "ceiling_gflops": limit, "ratio": rate / limit}

    if arguments.turns:
        print(json.dumps({"turn": 0, **measure()}), flush=True)
        for line in sys.stdin:
            if line.strip() == "end":
                break
            pairs.append(measure())
            print(json.dumps({"turn": len(pairs), **pairs[-1]}), flush=True)
        if not pairs:
            raise SystemExit("error: --turns: no line on stdin asked for a turn")
    else:
        pairs = [measure() for _ in range(arguments.pairs)]
    return {name: statistics.median(pair[name] for pair in pairs) for name in pairs[0]}


def status_mib(key):
    """A size of /proc/self/status, such as VmHWM (the peak) or VmRSS, in MiB."""
    with open("/proc/self/status") as file:
        return next((int(line.split()[1]) / 1024 for line in file if line.startswith(key + ":")), 0.0)


def torch_ready(arguments):
    """PyTorch in the environment that the arguments name, and the product of its ceiling."""
    environment.enter(arguments.environment, arguments.threads)
    import torch

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    if "flush" in environment.resolve(arguments.environment).split("+"):
        torch.set_flush_denormal(True)
    a, b, c = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE), torch.empty(SIZE, SIZE)

    def product():
        with torch.no_grad():
            torch.mm(a, b, out=c)

    return torch, product


def jax_ready(arguments):
    """JAX on so many cores, and the product of its ceiling."""
    # XLA makes as many threads as the process has cores, and has no option for fewer.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    os.environ["JAX_PLATFORMS"] = "cpu"
    environment.enter(arguments.environment, arguments.threads)
    import jax

    a, b = (jax.random.normal(jax.random.key(seed), (SIZE, SIZE)) for seed in (1, 2))
    multiply = jax.jit(lambda x, y: x @ y)
    return jax, lambda: multiply(a, b).block_until_ready()


def report(peer, version, bench, arguments, values):
    """Prints the line. `values`: what was measured; the options come first."""
    skip = ("pairs", "turns", "environment", "threads")
    options = {key: value for key, value in vars(arguments).items() if key not in skip}
    line = {"bench": bench, "peer": peer, "version": version, "threads": arguments.threads,
            "environment": arguments.environment, "parts": environment.resolve(arguments.environment),
            "settings": environment.entered(), **options}
    values.setdefault("peak_mib", status_mib("VmHWM"))
    line.update({key: float(f"{value:.6g}") for key, value in values.items() if key != "seconds"})
    print(json.dumps(line), flush=True)


def activation(name, np, gelu, elu):
    """An elementwise phi of polygrad by its name, written with `np` (torch or jax.numpy); None for softmax."""
    if name == "softmax":
        return None
    if name == "exp_neg":
        return lambda s: np.exp(-s)
    if name in ("exp", "tanh"):
        return getattr(np, name)
    if name == "relu":
        return lambda s: np.maximum(s, np.zeros_like(s))
    if name in ("gelu", "elu"):
        return gelu if name == "gelu" else elu
    power = name.replace("x^", "x")[1:] or "1"
    if name.startswith("x") and power.isdigit():
        exponent = int(power)
        if exponent == 3:
            return lambda s: s * s * s  # PyTorch is slower with pow
        return lambda s: s**exponent if exponent > 1 else s
    raise SystemExit(f"error: --phi {name}: unknown")


def divisor(scale, phi, tokens):
    """--scale as a number: a number, sqrt_n, n or auto."""
    if scale == "auto":
        scale = "sqrt_n" if phi.startswith("x") else "1"
    return {"sqrt_n": tokens**0.5, "n": float(tokens)}.get(scale) or float(scale)

"""What the peers' scripts share: command line, the peer's own ceiling, measurements in pairs or in turns, the JSON line.

The scripts beside this one run the work of polygrad_bench, with the same shapes and the same operation counts, in another
framework:

    python3 apps/bench/peers/gemm.py          --m 8224 --k 192 --n 576 [--trans-a] [--trans-b]
    python3 apps/bench/peers/attention.py     --phi x3 --batch 4 --heads 2 --tokens 4096 --head-dim 32 [--sdpa] [--compile]
    python3 apps/bench/peers/vit_step.py      --phi x3 --image 64 --patch 4 --classes 200 --batch 32 --scale 16 [--compile]
    python3 apps/bench/peers/lra_step.py      --task text --batch 8 --phi x3 --tokens 4096 [--sdpa] [--linear] [--compile]
    python3 apps/bench/peers/jax_gemm.py, jax_attention.py, jax_vit_step.py      the same in JAX, compiled by jit

Common options: --threads N (default: the cores this process may use), --pairs N, --turns (one measurement for each line
of stdin, as polygrad_bench), --environment default|best|... (environment.py). Those of PyTorch have --device cuda too:
times are then taken as apps/bench/gpu.h does (many runs behind each other between two events), and the ceiling is the
product of two --ceiling square matrices in the subject's precision. Each script prints one JSON line: the
bench, the peer and its version, the environment, the threads, its times, its peak memory, and `ceiling_gflops`: the rate
of a 2048 x 2048 x 2048 product (f32) in the same process, measured in turns with the subject.
run.sh finds an interpreter that has the frameworks, or makes one; `make bench` runs the scripts in turns with ours.
"""

import argparse
import gc
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


def add_device(arguments):
    """What the scripts of PyTorch have."""
    arguments.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments.add_argument("--ceiling", type=int, default=8192)


class Product:
    """One product of the ceiling; `size`: of its matrices."""

    def __init__(self, multiply, size=SIZE):
        self.multiply, self.size = multiply, size

    def __call__(self):
        """The seconds it took."""
        start = time.perf_counter()
        self.multiply()
        return time.perf_counter() - start


class GpuProduct:
    def __init__(self, torch, device, dtype, size):
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty(size, size, device=device, dtype=dtype)
        self.size = size
        self.batch = Batches(torch, lambda: torch.mm(a, b, out=out))

    def __call__(self):
        with self.batch.torch.no_grad():
            return self.batch()


class Batches:
    """As Batches of apps/bench/gpu.h: `run` starts work on the GPU; a call gives the seconds of one run in a batch."""

    SECONDS, LEAST, MOST = 0.05, 3, 5000

    def __init__(self, torch, run):
        self.torch, self.run, self.runs = torch, run, 1
        for _ in range(3):  # a compiler may need several
            self.measure(1)
        once = self.measure(2)
        self.runs = int(min(self.MOST, max(self.LEAST, self.SECONDS / max(once, 1e-9))))

    def measure(self, runs):
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(runs):
            self.run()
        end.record()
        end.synchronize()
        return 1e-3 * start.elapsed_time(end) / runs

    def __call__(self):
        return self.measure(self.runs)


class Spans:
    """Parts of runs on a GPU, between pairs of events, summed when it is asked for."""

    def __init__(self, torch):
        self.torch, self.spans = torch, []

    def mark(self):
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, start, end):
        self.spans.append((start, end))

    def mean(self):
        self.spans[-1][1].synchronize()
        seconds = 1e-3 * sum(start.elapsed_time(end) for start, end in self.spans) / len(self.spans)
        self.spans = []
        return seconds


def measure_ceiling(product, target):
    """GFLOP/s of the products that fill about `target` seconds."""
    spent, products, start = 0.0, 0, time.perf_counter()
    while products == 0 or time.perf_counter() - start < target:
        spent += product()
        products += 1
    return 2e-9 * product.size**3 * products / spent


def rest(arguments):
    """Gives a GPU's memory back, but for what lives: players that wait for their turns must fit beside the one that plays."""
    if not on_cpu(arguments):
        import torch

        gc.collect()
        torch.cuda.empty_cache()


def measure_pairs(product, flops, arguments, subject, warm_up=None):
    """As measure_pairs of apps/bench/ceiling.h. `product` makes one product of the ceiling; `subject` returns the seconds
    that count; `warm_up`: the same without writing anything down (None: subject)."""
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
        first = measure()
        rest(arguments)
        print(json.dumps({"turn": 0, **first}), flush=True)
        for line in sys.stdin:
            if line.strip() == "end":
                break
            if not on_cpu(arguments):
                (warm_up or subject)()  # the memory comes back
            pairs.append(measure())
            rest(arguments)
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


def torch_dtype(torch, name):
    return {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[name]


def torch_ready(arguments, precision="f32"):
    """PyTorch in the environment that the arguments name, and the product of its ceiling: on a GPU in that precision."""
    if not on_cpu(arguments):
        arguments.environment = "default"  # the others are about the CPU's memory and threads
    environment.enter(arguments.environment, arguments.threads)
    import torch

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    if "flush" in environment.resolve(arguments.environment).split("+"):
        torch.set_flush_denormal(True)
    if not on_cpu(arguments):
        if not torch.cuda.is_available():
            raise SystemExit("error: --device cuda: PyTorch finds no GPU")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        return torch, GpuProduct(torch, arguments.device, torch_dtype(torch, precision), arguments.ceiling)
    if precision == "f16":
        raise SystemExit("error: f16 is for --device cuda")
    a, b, c = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE), torch.empty(SIZE, SIZE)

    def multiply():
        with torch.no_grad():
            torch.mm(a, b, out=c)

    return torch, Product(multiply)


def cuda_mib(torch):
    """The peak of what tensors took of the GPU's memory since reset_peak_memory_stats, MiB."""
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**20


def jax_ready(arguments):
    """JAX on so many cores, and the product of its ceiling."""
    # XLA makes as many threads as the process has cores, and has no option for fewer.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    os.environ["JAX_PLATFORMS"] = "cpu"
    environment.enter(arguments.environment, arguments.threads)
    import jax

    a, b = (jax.random.normal(jax.random.key(seed), (SIZE, SIZE)) for seed in (1, 2))
    multiply = jax.jit(lambda x, y: x @ y)
    return jax, Product(lambda: multiply(a, b).block_until_ready())


def on_cpu(arguments):
    return getattr(arguments, "device", "cpu") == "cpu"


def report(peer, version, bench, arguments, values):
    """Prints the line. `values`: what was measured; the options come first."""
    skip = ("pairs", "turns", "environment", "threads") + (("device", "ceiling") if on_cpu(arguments) else ())
    options = {key: value for key, value in vars(arguments).items() if key not in skip}
    line = {"bench": bench, "peer": peer, "version": version, "threads": arguments.threads,
            "environment": arguments.environment, "parts": environment.resolve(arguments.environment),
            "settings": environment.entered(), **options}
    if on_cpu(arguments):
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

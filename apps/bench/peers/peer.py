"""What the peers' scripts share: command line, environment, the peer's own ceiling, paired measurements, the JSON line.

The scripts beside this one run the work of polygrad_bench, with the same shapes and the same operation counts, in
PyTorch on the CPU:

    python3 apps/bench/peers/gemm.py      --m 8224 --k 192 --n 576 [--trans-a] [--trans-b]
    python3 apps/bench/peers/attention.py --phi x3 --batch 4 --heads 2 --tokens 4096 --head-dim 32 [--sdpa] [--compile]
    python3 apps/bench/peers/vit_step.py  --phi x3 --image 64 --patch 4 --classes 200 --batch 32 --scale 16 [--compile]

Common options: --threads N (default: the cores this process may use), --pairs N, --environment best|default. `best` (the
default) starts the interpreter again under the settings that PyTorch's own guides recommend on a CPU: a malloc that
keeps freed memory (tcmalloc or jemalloc where one is installed, else glibc told to keep it), threads bound to cores, no
OpenBLAS core type forced. Each script prints one JSON line: the bench, the peer and its version, the environment, the
threads, its times, and `ceiling_gflops`, the rate of a 2048 x 2048 x 2048 product in the same process, measured in turns.
run.sh finds an interpreter that has torch, or makes a virtual environment, and runs the list of the comparison table.
"""

import argparse
import glob
import json
import os
import resource
import statistics
import sys
import time

KEPT = "POLYGRAD_PEER_ENVIRONMENT"  # set in the interpreter that was started again


def parser(about):
    result = argparse.ArgumentParser(description=about)
    result.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    result.add_argument("--pairs", type=int, default=11)
    result.add_argument("--environment", choices=["best", "default"], default="best")
    return result


def best_environment(threads):
    """The variables of the `best` environment."""
    settings = {"OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
    for pattern in ("libtcmalloc_minimal.so*", "libtcmalloc.so*", "libjemalloc.so*"):
        found = sorted(glob.glob("/usr/lib/*/" + pattern))
        if found:
            settings["LD_PRELOAD"] = found[0]
            if "tcmalloc" in pattern:
                settings["TCMALLOC_RELEASE_RATE"] = "0"
            else:
                settings["MALLOC_CONF"] = "dirty_decay_ms:-1,muzzy_decay_ms:-1"
            return settings
    settings.update(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_=str(1 << 40), MALLOC_TOP_PAD_=str(1 << 28))
    return settings


def enter_environment(arguments):
    """Starts this script again under the environment it is to be measured in, once, before torch is imported."""
    if arguments.environment != "best" or os.environ.get(KEPT):
        return
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OPENBLAS_", "KMP_", "GOMP_"))}
    settings = best_environment(arguments.threads)
    environment.update(settings)
    environment[KEPT] = " ".join(f"{key}={value}" for key, value in sorted(settings.items()))
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


class Ceiling:
    """The peer's rate for a product of 2048 x 2048 matrices, GFLOP/s."""

    SIZE = 2048

    def __init__(self, torch):
        self.torch = torch
        self.a = torch.randn(self.SIZE, self.SIZE)
        self.b = torch.randn(self.SIZE, self.SIZE)
        self.c = torch.empty(self.SIZE, self.SIZE)

    def measure(self, target):
        spent, products = 0.0, 0
        with self.torch.no_grad():
            while products == 0 or spent < target:
                start = time.perf_counter()
                self.torch.mm(self.a, self.b, out=self.c)
                spent += time.perf_counter() - start
                products += 1
        return 2e-9 * self.SIZE**3 * products / spent


def measure_pairs(ceiling, flops, pairs, subject):
    """As measure_pairs of apps/bench/ceiling.h; `subject` returns the seconds that count."""
    subject()
    slice_seconds = min(1.0, max(0.1, subject() / 4))
    times, rates, ceilings, ratios = [], [], [], []
    for _ in range(pairs):
        before = ceiling.measure(slice_seconds / 2)
        spent, runs, start = 0.0, 0, time.perf_counter()
        while runs == 0 or time.perf_counter() - start < slice_seconds:
            spent += subject()
            runs += 1
        after = ceiling.measure(slice_seconds / 2)
        limit = 2 / (1 / before + 1 / after)
        times.append(spent / runs)
        rates.append(1e-9 * flops * runs / spent)
        ceilings.append(limit)
        ratios.append(rates[-1] / limit)
    middle = statistics.median
    return {"seconds": middle(times), "gflops": middle(rates), "ceiling_gflops": middle(ceilings), "ratio": middle(ratios)}


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def prepare(torch, arguments):
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)


def report(torch, bench, arguments, values):
    """Prints the line. `values`: what was measured; the options come first."""
    options = {key: value for key, value in vars(arguments).items() if key not in ("threads", "pairs", "environment")}
    line = {"bench": bench, "peer": "pytorch", "version": torch.__version__, "threads": torch.get_num_threads(),
            "environment": arguments.environment, "settings": os.environ.get(KEPT, ""), **options}
    line.update({key: float(f"{value:.6g}") for key, value in values.items() if key != "seconds"})
    print(json.dumps(line), flush=True)


def activation(torch, name):
    """An elementwise phi of polygrad by its name; None for softmax."""
    if name == "softmax":
        return None
    if name == "exp":
        return torch.exp
    if name == "exp_neg":
        return lambda s: torch.exp(-s)
    if name in ("relu", "tanh"):
        return getattr(torch, name)
    if name in ("gelu", "elu"):
        return getattr(torch.nn.functional, name)
    power = name.replace("x^", "x")[1:] or "1"
    if name.startswith("x") and power.isdigit():
        exponent = int(power)
        if exponent == 3:
            return lambda s: s * s * s  # faster than pow in every version
        return lambda s: s.pow(exponent) if exponent > 1 else s
    raise SystemExit(f"error: --phi {name}: unknown")


def divisor(scale, phi, tokens):
    """--scale as a number: a number, sqrt_n, n or auto."""
    if scale == "auto":
        scale = "sqrt_n" if phi.startswith("x") else "1"
    return {"sqrt_n": tokens**0.5, "n": float(tokens)}.get(scale) or float(scale)

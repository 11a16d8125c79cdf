"""The page that `make bench` writes: results of run.py as Markdown, and the same tables as text for the terminal.

python3 apps/bench/page.py [build/bench/results.json] writes it once more from results that are there."""

import datetime
import json
import platform
import re
import subprocess
import sys
from pathlib import Path

COLUMNS = ("program", "ms", "GFLOP/s", "of its ceiling", "its 2048³", "peak MiB", "polygrad is")
LEAST_CEILING = 0.85  # of ours: below, a peer's products are not what the machine can do, and the page says so


def milliseconds(row):
    if "step_ms" in row:
        return row["step_ms"]
    return row["forward_ms"] + row["backward_ms"] if "forward_ms" in row else row.get("ms")


def cells(row):
    if row.get("failure"):
        return [row["name"], f"not measured: {row['failure']}"] + [""] * (len(COLUMNS) - 2)
    peak = row["peak_mib"] if "step_ms" in row else row.get("peak_extra_mib")
    return [row["name"], f"{milliseconds(row):.2f}" if milliseconds(row) < 100 else f"{milliseconds(row):.0f}",
            f"{row['gflops']:.0f}", f"{row['ratio']:.2f}", f"{row['ceiling_gflops']:.0f}",
            "" if peak is None else f"{peak:.0f}", f"{row['polygrad_is']:.2f} × as fast" if "polygrad_is" in row else ""]


def text_table(rows):
    lines = [cells(row) for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    for line in lines:
        if line[1].startswith("not measured"):
            yield f"  {line[0]:{widths[0]}}  {line[1]}"
        else:
            yield "  " + f"{line[0]:{widths[0]}}  " + "  ".join(f"{c:>{w}}" for c, w in zip(line[1:], widths[1:]))


def markdown(header, rows):
    yield "| " + " | ".join(header) + " |"
    yield "|---" + "|---:" * (len(header) - 1) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def machine():
    """Model, cores, caches and memory: no name of the machine."""
    text = subprocess.run(["lscpu"], capture_output=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}).stdout
    fields = dict(re.findall(r"^([^:\n]+):\s+(.*)$", text, re.M))
    caches = ", ".join(f"{name} {fields[name + ' cache']}" for name in ("L1d", "L2", "L3") if name + " cache" in fields)
    flags = fields.get("Flags", "").split()
    features = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1]) / 1024**2
    return (f"{fields.get('Model name', platform.machine())} (family {fields.get('CPU family', '?')}, model "
            f"{fields.get('Model', '?')}), {fields.get('CPU(s)', '?')} cores, {' '.join(features)}; caches: {caches}; "
            f"{memory:.0f} GiB of memory; Linux {platform.release().split('-')[0]}")


def peers_used(results):
    rows = [row for work in results["works"] for row in work["rows"] if "peer" in row]
    versions = sorted({f"{row['peer']} {row['version']}" for row in rows})
    settings = sorted({f"{row['environment']}: {row['parts']}" + (f" ({row['settings']})" if row["settings"] else "")
                       for row in rows})
    return versions, settings


def slow_ceilings(results):
    """Sentences about peers whose own 2048³ is below LEAST_CEILING of ours."""
    worst = {}
    for work in results["works"]:
        for row in work["rows"]:
            if row.get("ceiling_of_ours", 1) < LEAST_CEILING:
                worst.setdefault(row["peer"], []).append(row["ceiling_of_ours"])
    reason = {"jax": "XLA multiplies with its own compiled loops and Eigen, and has no option for another library",
              "pytorch": "in these runs something else took the machine, or its BLAS is not an optimised one"}
    for peer, values in sorted(worst.items()):
        yield (f"The 2048³ product of {peer} reached {min(values):.2f} to {max(values):.2f} of ours in {len(values)} rows, less "
               f"than {LEAST_CEILING}: {reason.get(peer, 'reason unknown')}.")


def page(results):
    return "\n".join(page_lines(results)) + "\n"


def page_lines(results):
    versions, settings = peers_used(results)
    threads, rounds = results["threads"], results["rounds"]
    yield "# Speed"
    yield ""
    yield ("Written by `make bench`; do not edit. What is compared was measured in turns in one run: each program once a round, "
           f"{rounds} rounds, medians. A ratio is the median of the rounds' ratios.")
    yield ""
    yield f"- date: {datetime.date.today().isoformat()}; {results['minutes']:.0f} minutes; {threads} threads"
    yield f"- machine: {results['machine']}"
    yield f"- polygrad: {'; '.join(results['version'].strip().splitlines()[:3])}"
    for version in versions:
        yield f"- peer: {version}"
    for setting in settings:
        yield f"- peer's environment {setting}"
    yield ""
    yield ("GFLOP/s count what [the contract of the bench](../../apps/bench/bench.h) counts, for all programs alike: the "
           "operations of the products of a plain forward and its gradient, nothing that is recomputed. A program's ceiling "
           "is its own product of two 2048 × 2048 matrices in f32, measured beside each of its turns. Peak memory of a "
           "training step is the process's (a peer's holds its interpreter and libraries too), of attention what one forward and "
           "backward add.")
    yield ""
    for work in results["works"]:
        yield f"## {work['title'][0].upper()}{work['title'][1:]}"
        yield ""
        yield from markdown(COLUMNS, [cells(row) for row in work["rows"]])
    for sentence in slow_ceilings(results):
        yield sentence
        yield ""
    if results["alone"]:
        yield "## polygrad alone"
        yield ""
        yield from markdown(COLUMNS[:6], [cells(row)[:6] for row in results["alone"]])
    if results["ops"] and "failure" not in results["ops"][0]:
        yield "## Ops by family"
        yield ""
        yield ("Nanoseconds for an element, and the share of a memory copy's speed: the bytes that the op must read and write "
               "at the least, against a copy of the same size measured in turns with it.")
        yield ""
        rows = [[row["family"], row["name"], "x".join(map(str, row["shape"])), f"{row['ns_per_element']:.3f}",
                 f"{row['copy_share']:.2f}",
                 *([f"{row['backward_ns_per_element']:.3f}", f"{row['backward_copy_share']:.2f}"]
                   if row.get("backward_ns_per_element") is not None else ["", ""])] for row in results["ops"]]
        yield from markdown(("family", "op", "shape", "forward ns", "of a copy", "backward ns", "of a copy"), rows)
    for name, rows in results["ladders"].items():
        if not rows or "failure" in rows[0]:
            continue
        yield f"## The ladder of {name.replace('_', ' ')}"
        yield ""
        yield (f"`polygrad_bench ladder --name {name}`: the same work, each rung one idea better than the last, and checked "
               "against the first.")
        yield ""
        yield from markdown(("rung", "ms", "share of the ceiling", "times the first", "error"),
                            [[row["rung"], f"{row['ms']:.2f}", f"{row['ratio']:.3f}", f"{row['speedup']:.1f}",
                              f"{row['max_error']:.0e}"] for row in rows])
    if results["tune"]:
        yield "## PyTorch's best environment"
        yield ""
        yield (f"`make peers` measured the training step (x³, eager) under each setting in turns with the best one before it; "
               f"here `best` is `{results['tune']['best']}`. The parts are explained in apps/bench/peers/environment.py.")
        yield ""
        yield from markdown(("environment", "against", "times as fast"),
                            [[row["environment"], row["against"], f"{row['gain']:.3f}"] for row in results["tune"]["rows"]])
    yield "## How to repeat it"
    yield ""
    yield "```"
    yield "make peers        # finds PyTorch and JAX or makes a virtual environment, and tries environments"
    yield "make bench        # this page; QUICK=1 and ONLY=text write build/bench/speed.md instead"
    yield "build/bin/polygrad_bench vit_step --phi x3 --scale 16 --image 64 --patch 4 --classes 200 --batch 32"
    yield "python3 apps/bench/peers/vit_step.py --phi x3 --scale 16 --image 64 --patch 4 --classes 200 --batch 32"
    yield "```"


if __name__ == "__main__":
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2] / "build/bench/results.json"
    print(page(json.loads(source.read_text())), end="")

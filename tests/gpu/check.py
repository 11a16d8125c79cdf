#!/usr/bin/env python3
"""Proves and measures the GPU backend on the machine it runs on; tests/gpu/check.sh starts it.

Takes the programs of build/gpu-bundle (make gpu-bundle, on any machine with the CUDA Toolkit), and builds for the present
GPU only where those don't start. Each part has its own time limit, and a part that fails stops no other. At the end a table,
and a JSON file; exit status 1 where a must failed. tests/gpu/report.py makes the page
docs/results/gpu.md of the JSON.

  --only NAME   one part (may be repeated); --list names them
  --json FILE   where the JSON goes (default: gpu_check.json in the folder OUT of the environment, else in build/)
  --cpu         all of this on the CPU, in less than three minutes: the programs with the tests' own CUDA runtime, as small as
                can be; no speed is judged
"""

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import parts  # noqa: E402
import programs  # noqa: E402
import targets  # noqa: E402
from runner import Failed, Runner, Skipped, table  # noqa: E402

ROOT = programs.ROOT
GPU_SECONDS, CPU_SECONDS = 430, 175
MEASURE = ("product", "linear", "ops")  # and the works


class Check:
    """What the parts share."""

    def __init__(self, arguments):
        self.cpu = arguments.cpu
        self.runner = Runner(arguments.total or (CPU_SECONDS if self.cpu else GPU_SECONDS))
        self.runner.most = arguments.limit or self.runner.most
        self.work = Path(tempfile.mkdtemp(prefix="gpu-check-"))
        self.data = self.work / "data"
        self.programs = programs.Programs(Path(arguments.build or ROOT / "build") / "bin", "host_") if self.cpu else None
        self.python = self.peers = None


def all_parts(check, works):
    """(name, seconds, function), in the order in which they run."""
    # What proves comes first, then what measures against the targets, then the rest: should there be too little time. A limit
    # is for when something is wrong; together they are more than all may take.
    yield "parity", 60 if check.cpu else 100, parts.parity
    yield "determinism", 60, parts.determinism
    yield "curves", 60, parts.curves
    yield "training", 60, parts.training
    yield "product", 40, targets.product
    for work in works:
        yield work.name, work.seconds, targets.part_of(work)
    yield "linear", 40, targets.linear
    yield "memcheck", 60, parts.sanitizer("memcheck")
    yield "racecheck", 60, parts.sanitizer("racecheck")
    yield "ops", 60, targets.ops


def machine(check):
    """What the JSON says about where it ran: no name of the machine."""
    found = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "system": f"{platform.system()} {platform.release().split('-')[0]}",
             "cores": len(os.sched_getaffinity(0))}
    if shutil.which("nvidia-smi"):
        try:
            told = check.runner.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], most=20)
            found["gpu"] = told.stdout.strip().splitlines()[0]
        except (Failed, IndexError) as reason:
            found["gpu"] = f"unknown: {reason}"
    if check.programs:
        try:
            told = check.runner.run([check.programs.path("polygrad_bench"), "--version"], check.programs.variables, most=20)
            found["version"] = told.stdout.strip().splitlines()
        except Failed as reason:
            found["version"] = [str(reason)]
    return found


def arguments_of(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="on the CPU, small, judging no speed")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this part only")
    parser.add_argument("--list", action="store_true", help="the names of the parts")
    parser.add_argument("--json", metavar="FILE", help="where the results go")
    parser.add_argument("--bundle", metavar="FOLDER", help="the programs (default: build/gpu-bundle)")
    parser.add_argument("--build", metavar="FOLDER", help="with --cpu: the build folder (default: build)")
    parser.add_argument("--total", type=float, metavar="SECONDS", help="for everything together")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="for each part, where it has more")
    parser.add_argument("--no-peers", action="store_true", help="polygrad alone")
    return parser, parser.parse_args(words)


def find_peers(check, arguments, works):
    """Starts PyTorch's scripts in the background; the text of the row `peers`."""
    if check.cpu or arguments.no_peers:
        raise Skipped("absent: not asked for" if arguments.no_peers else "absent: they are measured on a GPU only")
    check.python = programs.find_python(check.runner, "cuda")
    check.peers = targets.Peers(check, works)
    return f"PyTorch {check.python[1]}"


def main(words):
    parser, arguments = arguments_of(words)
    check = Check(arguments)
    works = targets.works(check.cpu)
    listed = list(all_parts(check, works))
    names = [name for name, _, _ in listed]
    if arguments.list:
        print("\n".join(names))
        return 0
    for name in arguments.only:
        if name not in names:
            parser.error(f"--only {name}: expected one of {', '.join(names)}")
    chosen = [part for part in listed if not arguments.only or part[0] in arguments.only]
    rows, where = [], {}
    target = Path(arguments.json or Path(os.environ.get("OUT") or ROOT / "build") / "gpu_check.json")

    def write():
        """After each part, and at once as a whole: whatever ends the check leaves what was found."""
        told = {row.name for row in rows}
        result = {"cpu": check.cpu, "seconds": round(time.monotonic() - check.runner.start, 1),
                  "failed": [row.name for row in rows if row.result == "failed"],
                  "unfinished": [name for name, _, _ in chosen if name not in told], "machine": where,
                  "parts": [vars(row) for row in rows]}
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_name(target.name + ".new")
        new.write_text(json.dumps(result, indent=1) + "\n")
        new.replace(target)
        return result

    def tell(row):
        rows.append(row)
        print(next(table([row])), flush=True)
        write()

    def get_programs(row):
        if check.cpu:
            check.programs.require("polygrad_bench")
            row.numbers.append("those with the tests' CUDA runtime")
        else:
            check.programs = programs.find(check.runner, row, Path(arguments.bundle or ROOT / "build/gpu-bundle"), check.work)

    try:
        tell(check.runner.part("programs", 240, get_programs))
        if rows[0].result == "passed":
            where = machine(check)
            playing = [work for work in works if work.name in {name for name, _, _ in chosen}]
            if playing:
                tell(check.runner.part("peers", 90, lambda row: row.numbers.append(find_peers(check, arguments, playing))))
            measuring = [function for name, _, function in chosen if name in MEASURE + tuple(work.name for work in works)]
            for name, seconds, function in chosen:
                if check.peers and function in measuring:
                    tell(check.runner.part("peers ready", 100, lambda row: check.peers.wait(row, check.runner.left())))
                    measuring = ()
                tell(check.runner.part(name, seconds, lambda row, f=function: f(check, row)))
    finally:
        if check.peers:
            check.peers.stop()
        shutil.rmtree(check.work, ignore_errors=True)
    result = write()
    bad = result["failed"]
    print(f"\n{'on the CPU' if check.cpu else where.get('gpu') or 'no GPU'}: {len(rows)} parts in {result['seconds']:.0f} s")
    print("\n".join(table(rows)))
    skipped = [row.name for row in rows if row.result == "skipped"]
    print(f"{len(rows) - len(bad) - len(skipped)} passed, {len(bad)} failed{': ' if bad else ''}{', '.join(bad)}, {len(skipped)} skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # programs that run are ended on the way out
    sys.exit(main(sys.argv[1:]))

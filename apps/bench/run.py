#!/usr/bin/env python3
"""Measures what the speed table shows (make bench): ours and the peers', in turns, into docs/results/speed.md.

QUICK=1: three rounds instead of seven; ONLY=text: the works with that text in their title; both leave the page in
build/bench/speed.md instead. THREADS=n changes the default. Peers are measured where `make peers` was run before, or where
python3 has PyTorch or JAX; what is missing the table names. Read next: works.py (what is measured), peers/turns.py (how
programs take turns), page.py (the page)."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "build/bin/polygrad_bench"
PEERS = ROOT / "apps/bench/peers"
OUT = ROOT / "build/bench"
sys.path[:0] = [str(PEERS), str(Path(__file__).resolve().parent)]

import page  # noqa: E402
import works  # noqa: E402
from turns import Player, play  # noqa: E402

MOST_PEERS = 4  # at a time
PEER_MIB = 6000  # what must be free for another


def interpreter():
    """The one that `make peers` found, or python3."""
    noted = ROOT / "build/peers/python"
    found = noted.read_text().strip() if noted.exists() else ""
    return found if found and shutil.which(found) else sys.executable


def missing_parts(python):
    """What is not there, each with the reason: of torch, compile, jax."""
    missing = {}
    for part, test in (("torch", "import torch"), ("jax", "import jax")):
        if subprocess.run([python, "-c", test], capture_output=True).returncode != 0:
            missing[part] = f"{'PyTorch' if part == 'torch' else 'JAX'} is not installed (make peers)"
    if "torch" in missing:
        missing["compile"] = missing["torch"]
    elif not shutil.which("g++"):
        missing["compile"] = "torch.compile needs g++"
    return missing


def free_mib():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("MemAvailable:"))


def measure(work, python, missing, threads, rounds):
    """The work's rows: dictionaries that page.py writes. Peers come in groups that memory allows, each beside ours."""
    rows, waiting = [], [peer for peer in work.peers if peer.needs not in missing]

    def our_player(name, arguments):
        return Player(name, [BENCH, *arguments.split(), "--threads", threads])

    first = True
    while first or waiting:
        ours = [our_player(*one) for one in (work.ours if first else work.ours[:1])]
        for player in ours:
            player.start()
        group = []
        while waiting and len(group) < MOST_PEERS and (not group or free_mib() > PEER_MIB):
            peer = waiting.pop(0)
            player = Player(peer.name, [python, PEERS / peer.script, *peer.options.split(), "--threads", threads,
                                        "--environment", peer.environment])
            player.start()
            group.append(player)
        play(ours + group, rounds)
        for player in (ours if first else []) + group:
            if not player.report:
                rows.append({"name": player.name, "failure": player.failure})
                continue
            row = {**player.report, "name": player.name}
            if player is not ours[0] and ours[0].report:
                row["polygrad_is"] = ours[0].times_as_fast_as(player)
                row["ceiling_of_ours"] = player.median("ceiling_gflops") / ours[0].median("ceiling_gflops")
            rows.append(row)
        first = False
    return rows + [{"name": peer.name, "failure": missing[peer.needs]} for peer in work.peers if peer.needs in missing]


def run_ours(arguments, threads, variables=None):
    """All lines of one call of polygrad_bench."""
    words = arguments.split() + ([] if "--threads" in arguments else ["--threads", str(threads)])
    result = subprocess.run([BENCH, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                            env={**os.environ, **(variables or {})})
    if result.returncode != 0:
        return [{"failure": (result.stderr.strip().splitlines() or ["it ended without a word"])[-1]}]
    return [json.loads(line) for line in result.stdout.splitlines()]


def main():
    if not BENCH.exists():
        sys.exit(f"error: {BENCH.relative_to(ROOT)} is not there; run make build")
    quick, only = os.environ.get("QUICK", "0") not in ("", "0"), os.environ.get("ONLY", "")
    threads = int(os.environ.get("THREADS") or len(os.sched_getaffinity(0)))
    rounds = 3 if quick else 7
    python = interpreter()
    missing = missing_parts(python)
    start = time.time()
    tune = ROOT / "build/peers/tune.json"
    results = {"rounds": rounds, "threads": threads, "works": [], "alone": [], "ops": [], "ladders": {}, "minutes": 0,
               "machine": page.machine(), "tune": json.loads(tune.read_text()) if tune.exists() else None,
               "version": subprocess.run([BENCH, "--version"], capture_output=True, text=True).stdout}
    target = OUT / "speed.md" if quick or only else ROOT / "docs/results/speed.md"

    def save():
        """After each work, so that what was measured is there if the next one is interrupted."""
        results["minutes"] = (time.time() - start) / 60
        OUT.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        (OUT / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        target.write_text(page.page(results))

    for work in works.works():
        if only not in work.title:
            continue
        print(f"\n{work.title}", flush=True)
        rows = measure(work, python, missing, threads, rounds)
        results["works"].append({"title": work.title, "rows": rows})
        print("\n".join(page.text_table(rows)), flush=True)
        save()
    if not only:
        print("\npolygrad alone", flush=True)
        pairs = "--pairs 3" if quick else "--pairs 7"
        for name, arguments, variables in works.ALONE:
            results["alone"].append({**run_ours(f"{arguments} {pairs}", threads, variables)[-1], "name": name})
            print("\n".join(page.text_table(results["alone"][-1:])), flush=True)
        results["ops"] = run_ours(f"ops {pairs}", threads)
        for name in ("attention", "layer_norm"):
            results["ladders"][name] = run_ours(f"ladder --name {name} {pairs}", threads)
    save()
    print(f"\nwritten to {target.relative_to(ROOT)} after {results['minutes']:.0f} minutes")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Finds the environment in which PyTorch's training step is fastest on this machine, and says what each part brings.

The candidates of environment.py run vit_step.py in turns (turns.py): first the allocators, then each further part added to
the best so far, and kept where it gains at least GAIN, and something in nearly all rounds. The result goes to build/peers/best, the table to
build/peers/tune.json, where `make bench` finds both. --threads N, --rounds N."""

import argparse
import json
import os
import sys
from pathlib import Path

import environment
from turns import Player, play

FOLDER = Path(__file__).resolve().parent
GAIN = 1.02
ALLOCATORS = ("default", "thp", "keep", "keep+thp", "tcmalloc", "jemalloc", "jemalloc+thp")
PARTS = ("iomp", "bind", "spin", "flush")
TOGETHER = 4  # programs at a time: each holds some 3 GiB


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    found = []  # (name, milliseconds, how many times as fast as the best before it)

    def measure(names, best):
        """The fastest of `best` and `names`, which play in groups, each with the best so far."""
        names = [name for name in names if environment.available(name)]
        while names:
            group, names = [best, *names[:TOGETHER - 1]], names[TOGETHER - 1:]
            players = [Player(name, [sys.executable, FOLDER / "vit_step.py", "--threads", arguments.threads,
                                     "--environment", name]) for name in group]
            play(players, arguments.rounds)
            before = players[0]
            if before.failure:
                raise SystemExit(f"error: vit_step.py --environment {best}: {before.failure}")
            for player in players[1:]:
                if player.failure:
                    print(f"{player.name}: {player.failure}", flush=True)
                    continue
                gain = player.times_as_fast_as(before)
                found.append((player.name, best, gain))
                print(f"{player.name}: {1e3 * player.median('seconds'):.0f} ms, {gain:.3f} x as fast as {best}", flush=True)
            sure = [p for p in players[1:] if not p.failure and p.times_as_fast_as(before) >= GAIN
                    and sum(gain > 1 for gain in p.gains_over(before)) >= 0.8 * arguments.rounds]
            best = max(sure, key=lambda p: p.times_as_fast_as(before)).name if sure else best
        return best

    best = measure(ALLOCATORS[1:], ALLOCATORS[0])
    for part in PARTS:
        best = measure([part if best == "default" else f"{best}+{part}"], best)
    environment.BEST_FILE.parent.mkdir(parents=True, exist_ok=True)
    environment.BEST_FILE.write_text(best + "\n")
    rows = [{"environment": name, "against": against, "gain": round(gain, 3)} for name, against, gain in found]
    (environment.BEST_FILE.parent / "tune.json").write_text(json.dumps({"best": best, "rows": rows}) + "\n")
    print(f"best: {best} ({' '.join(f'{k}={v}' for k, v in environment.variables(best, arguments.threads).items())})")


if __name__ == "__main__":
    main()

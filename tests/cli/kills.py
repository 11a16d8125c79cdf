#!/usr/bin/env python3
"""A run that saves every step is killed again and again, and must end with the bytes of one that never was.

kills.py PATH_OF_VIT_TRAIN [--kills N] [--seed N]. A kill counts when the run had saved a step since the last one. Half
of them come at random moments, half while a save is under way (its temporary folder is there); others, which do not
count, come while the run starts, loads and repairs its logs. After each kill every
checkpoint is compared with the uninterrupted run's of the same step, byte by byte, so that files of two steps, or a
number that is off, can't pass; after each resume the step it goes on from is checked, and that no leftover is there."""

import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS_PER_KILL = 4  # that a run is given; a kill uses up one to three of them
TENSORS = ("model.safetensors", "state.safetensors")


def write_data(folder):
    """An MNIST-like set of 8 x 8 pixels, whose class is the place of a bright row."""
    noise = random.Random(1)
    for part, count in (("train", 40), ("t10k", 12)):
        labels = bytes(noise.randrange(4) for _ in range(count))
        images = bytearray(noise.randrange(120) for _ in range(count * 64))
        for i, label in enumerate(labels):
            images[i * 64 + label * 8:i * 64 + label * 8 + 8] = bytes([230]) * 8
        (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, count, 8, 8) + bytes(images))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels)


def write_config(path, data, steps):
    """Small and fast, with everything that has state: accumulation, EMA, drop path, mixup, probes, a best."""
    path.write_text(json.dumps({
        "model": {"name": "vit_tiny", "image_size": 8, "patch_size": 4, "embed_dim": 12, "num_heads": 3, "depth": 2,
                  "drop_path": 0.1},
        "attention": {"phi": "x3"},
        "data": {"name": "idx", "root": str(data), "val_fraction": 0.25},
        "augment": {"mixup": 0.8},
        "optimizer": {"lr": 0.003},
        "train": {"batch_size": 4, "accumulate": 2, "epochs": steps / 4, "max_steps": steps, "ema_decay": 0.9,
                  "log_every_steps": 1, "checkpoint_every_steps": 1, "eval_every_steps": 5, "keep_last": 3},
        "probe": {"norms": True, "every_steps": 7, "samples": 4},
        "threads": 1}))


def saved_steps(run):
    """Of the checkpoints that have their final name, ascending."""
    try:
        return sorted(int(name[5:]) for name in os.listdir(run / "checkpoints") if name.startswith("step-"))
    except FileNotFoundError:
        return []


def is_saving(run):
    try:
        return any(name.startswith(".unfinished-step-") for name in os.listdir(run / "checkpoints"))
    except FileNotFoundError:
        return False


def rows_of(run):
    """The complete rows of metrics.jsonl; a kill may have cut the last one."""
    try:
        lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line, parse_constant=lambda word: sys.exit(f"{word} in metrics.jsonl")) for line in lines]


def results_of(run):
    """What the rows say, without what a clock or the number of starts decides."""
    clocks = ("samples_per_s", "data_wait", "seconds")
    return [{k: v for k, v in row.items() if k not in clocks} for row in rows_of(run) if row["event"] in ("train", "eval", "norms")]


def compare_checkpoints(run, whole):
    for step in saved_steps(run):
        folder, same = (place / "checkpoints" / f"step-{step:06}" for place in (run, whole))
        state = json.loads((folder / "state.json").read_text())
        assert state["step"] == step, f"{folder} is of step {state['step']}"
        for name in TENSORS:
            assert (folder / name).read_bytes() == (same / name).read_bytes(), f"{folder / name} differs from {same / name}"
        other = json.loads((same / "state.json").read_text())
        for key in ("epoch", "batch", "best_top1", "best_step", "ema_updates", "since_row"):
            assert state[key] == other[key], f"{folder}: {key} is {state[key]}, expected {other[key]}"
    for link in ("latest", "best"):
        place = run / "checkpoints" / link
        assert not place.is_symlink() or place.exists(), f"{place} points at nothing: {os.readlink(place)}"


def kill_once(command, run, dice, log, aimed):
    """Starts the run and kills it; the steps that were saved before and after, the last one a row tells of, and whether
    a save was under way. None where the run ended by itself."""
    before = (saved_steps(run) or [0])[-1]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    wanted = before + dice.randint(1, 2)
    deadline = time.monotonic() + 120
    while not saved_steps(run) or saved_steps(run)[-1] < wanted:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            return None
        time.sleep(0.0005)
    if aimed:
        while process.poll() is None and not is_saving(run):
            pass
        time.sleep(dice.random() ** 2 * 0.01)  # anywhere in a save, and behind it
    else:
        time.sleep(dice.random() * 0.03)
    seen = saved_steps(run)[-1]
    process.kill()
    if process.wait() != -9:
        return None
    trained = max((row["step"] for row in rows_of(run) if row["event"] == "train"), default=0)
    return before, seen, saved_steps(run)[-1], trained, is_saving(run)


def kill_at_start(command, dice, log):
    process = subprocess.Popen(command, stdout=log, stderr=log)
    time.sleep(dice.random() * 0.1)
    process.kill()
    process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("vit_train")
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        steps = (options.kills * STEPS_PER_KILL + 20) // 4 * 4
        write_data(folder)
        write_config(folder / "small.json", folder, steps)
        whole, run = folder / "whole", folder / "run"
        base = [options.vit_train, "--config", str(folder / "small.json"), "--quiet"]
        subprocess.run([*base, "--out", str(whole), "--set", "train.keep_last=1000000"], check=True, stdout=subprocess.DEVNULL)
        command = [*base, "--out", str(run), "--resume", "auto"]
        kills = aimed = starts_cut = lost = most_lost = 0
        with open(folder / "log", "w") as log:
            while kills < options.kills:
                while dice.random() < 0.25:
                    kill_at_start(command, dice, log)
                    starts_cut += 1
                    compare_checkpoints(run, whole)
                outcome = kill_once(command, run, dice, log, kills % 2 == 1)
                assert outcome, f"the run ended after {kills} kills: " + (folder / "log").read_text()[-2000:]
                before, seen, after, trained, saving = outcome
                starts = [row["step"] for row in rows_of(run) if row["event"] == "start"]
                assert starts[-1] == before, f"went on from step {starts[-1]}, step {before} was saved"
                assert after >= seen > before, f"step {seen} was saved, after the kill the newest is {after}"
                assert trained - after <= 1, f"step {trained} was done, the newest checkpoint is {after}"
                compare_checkpoints(run, whole)
                kills += 1
                aimed += saving
                lost += trained - after
                most_lost = max(most_lost, trained - after)
            result = subprocess.run(command, stdout=log, stderr=subprocess.PIPE, text=True)
        assert result.returncode == 0, result.stderr
        assert saved_steps(run)[-1] == steps and saved_steps(whole) == list(range(1, steps + 1))
        compare_checkpoints(run, whole)
        names = sorted(os.listdir(run)) + sorted(os.listdir(run / "checkpoints"))
        assert not [name for name in names if name.startswith(".unfinished") or ".tmp-" in name], names
        assert results_of(run) == results_of(whole), "the rows of metrics.jsonl differ"
        assert (run / "norms.csv").read_bytes() == (whole / "norms.csv").read_bytes(), "norms.csv differs"
        trained = [row["step"] for row in rows_of(run) if row["event"] == "train"]
        assert trained == list(range(1, steps + 1)), "a step is missing or there twice"
        print(f"{kills} kills in {steps} steps, {aimed} of them inside a save, and {starts_cut} more at a start: weights, moments, average and rows are "
              f"those of the uninterrupted run; {lost} steps were done again, at most {most_lost} after a kill")


if __name__ == "__main__":
    main()

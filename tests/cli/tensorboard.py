#!/usr/bin/env python3
"""The event files of a run, read by TensorBoard itself: each number of metrics.jsonl once, also after a resume.

tensorboard.py PATH_OF_VIT_TRAIN. TensorBoard is looked for in the Python that POLYGRAD_PYTHON names, then in this one;
without it the test is skipped, and says so."""

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# The folder of this script holds a file of the same name as the package.
sys.path = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]
try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    other = os.environ.get("POLYGRAD_PYTHON")
    if other and not os.environ.get("POLYGRAD_PYTHON_TRIED"):
        os.environ["POLYGRAD_PYTHON_TRIED"] = "1"
        os.execv(other, [other, *sys.argv])
    print("[skip] no TensorBoard: name a Python that has it in POLYGRAD_PYTHON")
    sys.exit(0)

SETTINGS = {
    "train.tensorboard": "true",
    "train.max_steps": "8",
    "train.epochs": "null",
    "train.batch_size": "4",
    "train.accumulate": "1",
    "train.log_every_steps": "1",
    "train.eval_every_steps": "2",
    "train.checkpoint_every_steps": "2",
    "train.keep_last": "9",
    "probe.norms": "true",
    "probe.every_steps": "2",
    "probe.samples": "4",
    "model.image_size": "8",
    "model.patch_size": "4",
    "model.embed_dim": "12",
    "model.num_heads": "3",
    "model.depth": "2",
    "attention.phi": "x3",
    "augment.preset": "none",
    "schedule.warmup_epochs": "0",
}


def picture(seed):
    """A BMP of 4 x 4 grey dots."""
    pixels = b"".join(bytes([(seed * 37 + i * 11) % 256]) * 3 for i in range(16))
    numbers = (40).to_bytes(4, "little") + (4).to_bytes(4, "little") * 2
    form = (1).to_bytes(2, "little") + (24).to_bytes(2, "little") + bytes(24)
    head = b"BM" + (54 + len(pixels)).to_bytes(4, "little") + bytes(4) + (54).to_bytes(4, "little")
    return head + numbers + form + pixels


def make_data(folder):
    for part in ("train", "val"):
        for label in ("a", "b"):
            path = folder / part / label
            path.mkdir(parents=True)
            for i in range(8):
                (path / f"{i}.bmp").write_bytes(picture(i + 100 * (label == "b")))


def train(program, data, run, *more):
    settings = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    arguments = ["--config", "image_folder", "--data", str(data), "--out", str(run), "--threads", "1", *settings, *more]
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def expected(run):
    """{tag: [(step, value), ...]} of metrics.jsonl."""
    scalars = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["event"] not in ("train", "eval", "norms"):
            continue
        for key, value in row.items():
            if key in ("event", "split", "step", "epoch", "layer", "count", "weights") or isinstance(value, (str, bool)):
                continue
            group = row["event"] if row["event"] == "train" else row.get("split")
            tag = f"{key}/layer_{row['layer']:02}" if row["event"] == "norms" else f"{group}/{key}"
            scalars.setdefault(tag, []).append((row["step"], math.nan if value is None else value))
    return scalars


def check(accumulator, run):
    wanted = expected(run)
    tags = set(accumulator.Tags()["scalars"])
    assert tags == set(wanted), (sorted(tags), sorted(wanted))
    for tag, points in wanted.items():
        found = [(event.step, event.value) for event in accumulator.Scalars(tag)]
        assert [step for step, _ in found] == [step for step, _ in points], (tag, found, points)
        for (_, value), (_, number) in zip(found, points):
            same = math.isnan(value) if math.isnan(number) else math.isclose(value, number, rel_tol=1e-6, abs_tol=1e-30)
            assert same, (tag, value, number)
    for tag in ("train/loss", "train/lr", "train/grad_norm", "train/top1", "val/loss", "val/top1", "attention/layer_02"):
        assert tag in tags, tag
    return len(tags)


def read(run):
    accumulator = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_data(folder / "data")
        run = folder / "run"
        train(program, folder / "data", run)
        looking_on = read(run)
        tags = check(looking_on, run)
        times = {event.step: event.wall_time for event in looking_on.Scalars("train/loss")}
        # Back to step 4: the rows behind it are written again, those before keep their times.
        train(program, folder / "data", run, "--resume", str(run / "checkpoints/step-000004"))
        resumed = read(run)
        check(resumed, run)
        for event in resumed.Scalars("train/loss"):
            assert (event.wall_time == times[event.step]) == (event.step <= 4), event
        # One that has looked on all the time sees the same.
        looking_on.Reload()
        check(looking_on, run)
        print(f"TensorBoard finds {tags} tags, each step once, before and after a resume")


if __name__ == "__main__":
    main()

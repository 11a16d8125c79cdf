#!/usr/bin/env python3
"""The page of training runs: means over the steps, commands that give the run's configuration, runs that did not end.

runs_page.py PATH_OF_VIT_TRAIN. The configuration comes from the program itself, the rows are written here."""

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "apps/bench"))

import runs_page  # noqa: E402

SET = {"model.patch_size": "8", "train.epochs": "2", "schedule.warmup_epochs": "1", "optimizer.lr": "0.0005", "seed": "7", "augment.flip": "true"}


def train(program, arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def effective(program, arguments):
    """The configuration of a dry run on a few pictures, as the program prints it."""
    text = train(program, [*arguments, "--dry-run"])
    begin = text.index("{")
    return json.JSONDecoder().raw_decode(text[begin:])[0]


def pictures(folder):
    """Class folders of a small BMP each."""
    for part in ("train", "val"):
        for name in ("a", "b"):
            path = folder / part / name
            path.mkdir(parents=True)
            head = (54).to_bytes(4, "little") + (40).to_bytes(4, "little") + (2).to_bytes(4, "little") * 2
            size = b"BM" + (70).to_bytes(4, "little") + bytes(4) + head + (1).to_bytes(2, "little") + (24).to_bytes(2, "little")
            (path / "1.bmp").write_bytes(size + bytes(24) + bytes(16))


def row(event, **values):
    return json.dumps({"event": event, **values})


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pictures(folder / "data")
        settings = [word for key, value in SET.items() for word in ("--set", f"{key}={value}")]
        arguments = ["--config", "tiny_imagenet_light", "--data", str(folder / "data"), "--threads", "1", *settings]
        config = effective(program, arguments)
        checkpoint = folder / "run/checkpoints/latest"
        checkpoint.mkdir(parents=True)
        state = {"name": "tiny_imagenet_light", "classes": ["a", "b"], "config": config}
        (checkpoint / "state.json").write_text(json.dumps(state))
        norms = {"attention": 0.5, "attention_min": 0.25, "attention_max": 1, "jacobian_s": 2, "jacobian_q": 3, "jacobian_k": None}
        rows = [row("start", step=0, params=9, device="cpu", threads=1, gemm="x", precision="f32", seed=7, train_samples=2, val_samples=2),
                row("norms", step=0, epoch=0, layer=1, **norms),
                row("train", step=10, epoch=0.5, loss=6.0), row("train", step=12, epoch=0.6, loss=3.0),
                row("eval", split="val", step=20, epoch=1, loss=5.0, top1=12.5, count=2),
                row("train", step=22, epoch=1.1, loss=None), row("train", step=32, epoch=1.6, loss=2.0),
                row("eval", split="val", step=40, epoch=2, loss=None, top1=10, count=2)]
        metrics = folder / "run/metrics.jsonl"
        metrics.write_text("\n".join(rows) + '\n{"event":"tra')  # the last line is cut
        run = runs_page.Run(folder / "run")
        text = "\n".join(runs_page.page_lines("Title", "", [run], program))
        for part in ("| 1.00 | 20 | 5.5000 | 5.0000 | 12.50 |  |", "| 2.00 | 40 | 2.0000 |  | 10.00 |  |",
                     "x3, c = √N = 8", "12.50 | 2.00 (step 40) | 7 | not ended", "ln 2 = 0.6931", "| 1 | 0.5 | 2 | 3 |  | 0.25 | 1 |"):
            assert part in text, (part, text)
        command = shlex.split(run.command(program))
        for key, value in SET.items():
            assert f"{key}={value}" in command, (key, command)
        assert command.count("--set") == len(SET), command
        command[command.index("DIR")] = str(folder / "data")
        assert effective(program, command[1:]) == config
        metrics.write_text("\n".join([*rows, row("end", status="done", step=40, seconds=7200)]))
        assert "done, 2.0 h" in "\n".join(runs_page.page_lines("Title", "", [runs_page.Run(folder / "run")], program))


if __name__ == "__main__":
    main()

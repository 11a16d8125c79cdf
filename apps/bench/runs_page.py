#!/usr/bin/env python3
"""The page of some training runs: curves and norms as tables, and the command of each run, from the files of its folder.

python3 apps/bench/runs_page.py --title TEXT [--about TEXT] RUN... >docs/results/NAME.md

Each RUN is a run folder (metrics.jsonl, checkpoints/latest/state.json). The commands follow from the run's effective
configuration: what differs from its preset in apps/experiments, whose other keys `vit_train --help-config` tells.
Nothing on the page is typed by hand. Read next: page.py (the page of speed)."""

import argparse
import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import page

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build/bin/vit_train"
PRESETS = ROOT / "apps/experiments"
ALIASES = {"attention.divisor": "attention.scale"}
NORMS = (("attention", "‖P‖"), ("jacobian_s", "‖∂P/∂S‖"), ("jacobian_q", "‖∂P/∂W_Q‖"), ("jacobian_k", "‖∂P/∂W_K‖"))


def leaves(tree, path=""):
    """Key path -> value."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield ALIASES.get(path + key, path + key), value


def defaults(program):
    """Key path -> default value, as --help-config lists them."""
    text = subprocess.run([str(program), "--help-config"], capture_output=True, text=True, check=True).stdout
    return {key: json.loads(value) for key, value in re.findall(r"^  ([a-z0-9_.]+) +(\S.*?)  +\S", text, re.M)}


def one_size(value):
    """A size is kept as [height, width], whatever way it was given."""
    return value[0] if isinstance(value, list) and len(value) == 2 and value[0] == value[1] else value


class Run:
    def __init__(self, folder):
        self.rows = []
        for line in (Path(folder) / "metrics.jsonl").read_text().splitlines():
            try:
                self.rows.append(json.loads(line))
            except json.JSONDecodeError:
                pass  # the last line of a run that is being written, or was killed
        state = json.loads((Path(folder) / "checkpoints/latest/state.json").read_text())
        self.preset, self.classes = state["name"], len(state["classes"])
        self.config = dict(leaves(state["config"]))
        self.start = self.of("start")[-1]
        self.end = next((row for row in reversed(self.rows) if row["event"] in ("start", "end")), None)
        if self.end["event"] == "start":
            self.end = None  # it goes on, or was killed

    def of(self, event):
        return [row for row in self.rows if row["event"] == event]

    def label(self):
        phi, scale = self.config["attention.phi"], self.config["attention.scale"]
        if phi == "softmax":
            return "softmax"
        if scale in ("auto", "sqrt_n") and isinstance(phi, str) and phi.startswith("x"):
            (height, width), (down, across) = self.config["model.image_size"], self.config["model.patch_size"]
            return f"{phi}, c = √N = {math.sqrt(height // down * (width // across)):g}"
        return f"{phi}, c = {scale}"

    def command(self, program):
        known = defaults(program)
        known.update(leaves(json.loads((PRESETS / f"{self.preset}.json").read_text())))
        words = ["build/bin/vit_train", "--config", self.preset, "--data", "DIR"]
        for key, value in self.config.items():
            if key in ("data.root", "threads", "device") or one_size(value) == one_size(known.get(key)):
                continue
            value = one_size(value)
            words += ["--set", shlex.quote(f"{key}={value if isinstance(value, str) else json.dumps(value)}")]
        words += ["--threads", str(self.start["threads"])]
        return " ".join(words)

    def epochs(self):
        """For each evaluation on val: its row, and the training loss from the one before to it, a mean over the steps."""
        begin, last = 0, 0
        trained = self.of("train")
        for row in self.of("eval"):
            if row["split"] != "val":
                continue
            total, steps = 0.0, 0
            for train in trained:
                if not begin < train["step"] <= row["step"]:
                    continue
                if train["loss"] is not None:
                    total += train["loss"] * (train["step"] - last)
                    steps += train["step"] - last
                last = train["step"]
            yield row, total / steps if steps else math.nan
            begin = row["step"]

    def probes(self):
        """The steps at which norms were taken."""
        return sorted({row["step"] for row in self.of("norms")})


def number(value, places=4):
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else f"{value:.{places}f}"


def significant(value):
    return "" if value is None else f"{value:.3g}"


def summary(run):
    points = list(run.epochs())
    last, loss = points[-1] if points else ({}, math.nan)
    step = max(row["step"] for row in run.rows if "step" in row)
    epoch = max(row["epoch"] for row in run.rows if "epoch" in row)
    state = f"{run.end['status']}, {run.end['seconds'] / 3600:.1f} h" if run.end else "not ended"
    best = max((row["top1"] for row, _ in points), default=None)
    return [run.label(), number(loss), number(last.get("loss")), number(last.get("top1"), 2), number(best, 2),
            f"{epoch:.2f} (step {step})", str(run.start["seed"]), state]


def page_lines(title, about, runs, program):
    yield f"# {title}"
    yield ""
    yield "Written by apps/bench/runs_page.py from the files of the runs; do not edit."
    yield ""
    if about:
        yield about
        yield ""
    first = runs[0]
    yield (f"Chance is a loss of ln {first.classes} = {math.log(first.classes):.4f} and a top-1 of "
           f"{100 / first.classes:.2f} %. Training losses hold what the recipe adds (augmentation, label smoothing "
           f"{first.config['train.label_smoothing']:g}, drop-path {first.config['model.drop_path']:g}), losses on val do not.")
    yield ""
    yield from page.markdown(("φ", "training loss, last epoch", "val loss", "val top-1 %", "best top-1 %", "ended at epoch",
                              "seed", "state"), [summary(run) for run in runs])
    yield "## Commands"
    yield ""
    yield "```"
    for run in runs:
        yield run.command(program)
    yield "```"
    yield ""
    for run in runs:
        start = run.start
        yield f"## Epochs: {run.label()}"
        yield ""
        yield (f"{start['params']} parameters, {start['train_samples']} training and {start['val_samples']} validation images; "
               f"{start['device']}, {start['threads']} threads, products by {start['gemm']} in {start['precision']}.")
        yield ""
        yield from page.markdown(("epoch", "step", "training loss", "val loss", "val top-1 %", "val top-5 %"),
                                 [[number(row["epoch"], 2), str(row["step"]), number(loss), number(row["loss"]),
                                   number(row["top1"], 2), number(row.get("top5"), 2)] for row, loss in run.epochs()])
    for run in runs:
        rows = {(row["step"], row["layer"]): row for row in run.of("norms")}
        steps, layers = run.probes(), sorted({layer for _, layer in rows})
        if not steps:
            continue
        yield f"## Norms: {run.label()}"
        yield ""
        yield "Frobenius norms of the attention matrices, means over the heads and the probed images; a column a step."
        yield ""
        yield from page.markdown(("layer", *map(str, steps)),
                                 [[str(layer), *(significant(rows.get((step, layer), {}).get("attention")) for step in steps)]
                                  for layer in layers])
        for step in dict.fromkeys((steps[0], steps[-1])):
            yield f"At step {step}, with the Jacobians, and the least and the largest head's ‖P‖:"
            yield ""
            yield from page.markdown(("layer", *(name for _, name in NORMS), "least ‖P‖", "largest ‖P‖"),
                                     [[str(layer), *(significant(rows[step, layer][key]) for key, _ in NORMS),
                                       significant(rows[step, layer]["attention_min"]),
                                       significant(rows[step, layer]["attention_max"])]
                                      for layer in layers if (step, layer) in rows])


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--title", required=True)
    arguments.add_argument("--about", default="")
    arguments.add_argument("--program", type=Path, default=PROGRAM, help="the vit_train whose defaults are meant")
    arguments.add_argument("runs", nargs="+", metavar="RUN")
    options = arguments.parse_args()
    lines = page_lines(options.title, options.about, [Run(folder) for folder in options.runs], options.program)
    sys.stdout.write("\n".join(lines).rstrip("\n") + "\n")


if __name__ == "__main__":
    main()

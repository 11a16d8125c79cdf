#!/usr/bin/env python3
"""Plays every program of the check, for check_test.py: well, or broken as FAKE says ("vit_train=hang test_cuda=fail")."""

import json
import os
import sys
import time
from pathlib import Path

NAME = Path(sys.argv[0]).name.removeprefix("host_")
WORDS = sys.argv[1:]
BROKEN = dict(pair.split("=") for pair in os.environ.get("FAKE", "").split())


def option(name, otherwise=None):
    return WORDS[WORDS.index(name) + 1] if name in WORDS else otherwise


def test_program():
    failed = 1 if BROKEN.get(NAME) == "fail" else 0
    if failed:
        print("TEST CASE:  layer norm\nfile.cpp:1: ERROR: CHECK( 1 == 2 ) is NOT correct!")
    print(f"[doctest] test cases:   3 |   {3 - failed} passed | {failed} failed | 0 skipped")
    return failed


def trainer():
    tree = json.loads(Path(option("--config")).read_text())
    out, steps = Path(option("--out")), tree["train"].get("max_steps", 5)
    out.mkdir(parents=True)
    off = 0.5 if BROKEN.get(NAME) == "drift" and option("--device") != "cpu" else 0.0
    rows = [{"event": "train", "loss": 1 / (step + 1) + off, "skipped_steps": 0} for step in range(steps)]
    (out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = out / "checkpoints" / f"step-{steps:06}"
    folder.mkdir(parents=True)
    noise = os.urandom(8) if BROKEN.get(NAME) == "noise" else b"        "
    for name in ("model.safetensors", "state.safetensors"):
        (folder / name).write_bytes(b"weights " + noise)
    print("test top-1 97.50 % of 48 images (best weights: step 5), 1 s of training")
    return 0


def bench():
    kind = WORDS[0] if not WORDS[0].endswith(".py") else Path(WORDS[0]).stem
    seconds = float(BROKEN.get("seconds", 0.01)) if NAME == "polygrad_bench" else 0.02
    pair = {"seconds": seconds, "gflops": 60.0, "ceiling_gflops": 100.0, "ratio": 0.6}
    line = {"bench": kind, **pair, "batch": 1, "heads": 1, "tokens": int(option("--tokens", 64)), "peak_extra_mib": 0.001,
            "relative_error": 1e-6, "forward_ms": 1e3 * seconds * int(option("--tokens", 64)), "backward_ms": 0.0,
            "name": "gelu", "copy_share": 0.9}
    if kind == "vit_step":
        line["step_ms"] = 1e3 * seconds
    if "--turns" in WORDS:
        print(json.dumps({"turn": 0, **pair}), flush=True)
        for asked in sys.stdin:
            if asked.strip() == "end":
                break
            print(json.dumps({"turn": 1, **pair}), flush=True)
    print(json.dumps(line), flush=True)
    return 0


def main():
    if BROKEN.get(NAME) == "hang":
        print("TEST CASE:  the one that hangs\nstill at it", file=sys.stderr)
        time.sleep(100)
    if BROKEN.get("library", "") not in os.environ.get("LD_LIBRARY_PATH", ""):
        print("error: [gemm] this cuBLASLt is of no use", file=sys.stderr)
        return 6
    if BROKEN.get(NAME) == "absent":
        print("error: [device] no CUDA device was found: there is no NVIDIA driver", file=sys.stderr)
        return 6
    if BROKEN.get(NAME) == "crash":
        os.abort()
    if WORDS[:1] == ["-c"]:  # an interpreter that is asked for PyTorch
        print("9.9 True")
        return 0
    if WORDS == ["--version"]:
        print("version 0")
        return 0
    if NAME.startswith("test_"):
        return test_program()
    return trainer() if NAME == "vit_train" else bench()


if __name__ == "__main__":
    sys.exit(main())

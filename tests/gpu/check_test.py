#!/usr/bin/env python3
"""The check itself, with programs that only play: what is broken is told, and stops nothing else."""

import contextlib
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import check  # noqa: E402
import programs  # noqa: E402
import report  # noqa: E402
import targets  # noqa: E402
from runner import Row  # noqa: E402


def run(folder, fake, *words, missing=()):
    """(exit status, rows by name, text) of a check whose programs are played in `folder`/bin."""
    bins = folder / "bin"
    shutil.rmtree(bins, ignore_errors=True)
    bins.mkdir(parents=True)
    for name in (*programs.NAMES, "host_polygrad_bench", "host_vit_train", "python3"):
        if name not in missing:
            shutil.copy(HERE / "fake_program.py", bins / name)
    os.environ.update(FAKE=fake, POLYGRAD_PYTHON=str(bins / "python3"))
    text = io.StringIO()
    target = folder / "gpu_check.json"
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            status = check.main([*words, "--bundle", str(folder), "--build", str(folder), "--json", str(target)])
        except SystemExit as stop:
            return stop.code, {}, text.getvalue()
    return status, {part["name"]: part for part in json.loads(target.read_text())["parts"]}, text.getvalue()


def results(rows):
    return {name: row["result"] for name, row in rows.items()}


def test_all_is_well(folder):
    status, rows, text = run(folder, "", "--cpu")
    assert status == 0, text
    told = results(rows)
    assert told.pop("peers") == told.pop("memcheck") == told.pop("racecheck") == "skipped"
    assert set(told.values()) == {"passed"}, text
    assert "absent" in rows["peers"]["reason"]
    assert "not run on a GPU" in report.page(json.loads((folder / "gpu_check.json").read_text()))


def test_on_a_gpu(folder):
    status, rows, text = run(folder, "")
    assert status == 0, text
    told = results(rows)
    for name in ("memcheck", "racecheck"):
        told.pop(name)  # as the machine has it
    assert set(told.values()) == {"passed"}, text
    assert rows["peers"]["numbers"] == ["PyTorch 9.9"]
    assert any("of torch.compile's speed 2 " in number for number in rows["vit_tiny_softmax"]["numbers"]), text
    page = report.page(json.loads((folder / "gpu_check.json").read_text()))
    for said in ("vit_base", "torch.compile", "PyTorch 9.9", ">= 0.7"):
        assert said in page, (said, page)


def test_too_slow(folder):
    """Ours as fast as theirs: x³ must be 1.2 times as fast, a step 0.7 times."""
    status, rows, text = run(folder, "seconds=0.02", "--only", "vit_tiny_x3", "--only", "vit_base")
    assert status == 1, text
    assert results(rows)["vit_base"] == "passed" and results(rows)["vit_tiny_x3"] == "failed"
    assert "expected >= 1.2" in rows["vit_tiny_x3"]["reason"]


def test_broken_programs(folder):
    for fake, part, said in (("test_cuda=fail", "parity", "layer norm"), ("test_cuda=crash", "parity", "no summary"),
                             ("vit_train=noise", "determinism", "differs between two runs"),
                             ("vit_train=drift", "curves", "expected <= 0.001"), ("vit_train=crash", "curves", "exit -6"),
                             ("polygrad_bench=crash", "product", "exit -6"), ("polygrad_bench=crash", "attention_x3", "polygrad:")):
        status, rows, text = run(folder, fake, "--cpu", "--only", part, "--only", "linear", "--only", "training")
        assert status == 1, (fake, text)
        assert rows[part]["result"] == "failed" and said in rows[part]["reason"], (fake, rows[part])
        untouched = "training" if fake.startswith("polygrad_bench") else "linear"
        assert rows[untouched]["result"] == "passed", (fake, text)


def test_missing_programs(folder):
    status, rows, text = run(folder, "", "--cpu", missing=("host_polygrad_bench",))
    assert status == 1 and list(rows) == ["programs"] and "host_polygrad_bench is not there" in rows["programs"]["reason"], text
    status, rows, text = run(folder, "", "--cpu", "--only", "curves", "--only", "product", missing=("host_vit_train",))
    assert status == 1 and results(rows)["product"] == "passed" and "host_vit_train is not there" in rows["curves"]["reason"], text


def test_hanging_programs(folder):
    for fake, parts in (("vit_train=hang", ("determinism", "product")), ("polygrad_bench=hang", ("attention_x3", "parity"))):
        start = time.monotonic()
        words = [word for part in parts for word in ("--only", part)]
        status, rows, text = run(folder, fake, "--cpu", "--limit", "2", *words)
        assert status == 1 and results(rows)[parts[0]] == "failed" and results(rows)[parts[1]] == "passed", text
        assert "time limit" in rows[parts[0]]["reason"] or "no answer" in rows[parts[0]]["reason"], text
        assert ("the one that hangs: still at it" in rows[parts[0]]["reason"]) == (parts[0] == "determinism"), text
        assert time.monotonic() - start < 20, text
    # When the time for everything is up, what is left is named.
    status, rows, text = run(folder, "vit_train=hang", "--cpu", "--total", "3", "--only", "determinism", "--only", "linear")
    assert status == 1 and rows["linear"]["result"] == "skipped" and rows["linear"]["reason"] == "no time left", text


def test_ended_from_outside(folder):
    """SIGTERM: what was found is in the file, and nothing runs on."""
    run(folder, "test_cuda=hang", "--cpu", "--only", "linear")  # makes the programs
    target = folder / "ended.json"
    started = subprocess.Popen([sys.executable, HERE / "check.py", "--cpu", "--build", folder, "--json", target,
                                "--only", "parity", "--only", "linear"], stdout=subprocess.DEVNULL)
    name = str(folder / "bin/test_cuda")

    def hangs():
        return any(name in cmdline(entry) for entry in Path("/proc").glob("[0-9]*"))

    end = time.monotonic() + 20
    while not (target.exists() and hangs()) and time.monotonic() < end:
        time.sleep(0.05)
    assert hangs()
    time.sleep(1)  # the program is there a moment before the check knows its number
    started.terminate()
    assert started.wait(20) == 143
    found = json.loads(target.read_text())
    assert [part["name"] for part in found["parts"]] == ["programs"] and found["unfinished"] == ["parity", "linear"], found
    assert not hangs()


def cmdline(process):
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""  # it has ended meanwhile


def test_libraries(folder):
    """A library that is found, but of no use, leads to the next one; no folder of the machine is on the page."""
    with mock.patch.object(programs, "library_folders", lambda: ["/usr/bad/lib64", "/opt/good/site-packages/nvidia/cu13/lib"]):
        status, rows, text = run(folder, "library=good", "--only", "linear", "--no-peers")
        assert status == 0 and rows["programs"]["numbers"] == ["the bundle starts, with the cuBLASLt of PyTorch"], text
    found = json.loads((folder / "gpu_check.json").read_text())
    found["parts"][0].update(result="failed", reason="vit_train: /tmp/gpu-check-x/curve.json: no such file; 1/2, TFLOP/s")
    assert "| vit_train: curve.json: no such file; 1/2, TFLOP/s; " in report.page(found), report.page(found)


def test_hanging_peers(folder):
    """Peers that never get ready are left out, and told."""
    status, rows, text = run(folder, "python3=hang", "--limit", "3", "--only", "vit_base")
    assert "PyTorch" in rows["peers"]["reason"] and rows["peers"]["result"] == "skipped", text
    assert status == 0 and rows["vit_base"]["result"] == "passed", text


def test_no_gpu(folder):
    status, rows, text = run(folder, "polygrad_bench=absent")
    assert status == 1 and list(rows) == ["programs"] and "no CUDA device was found" in rows["programs"]["reason"], text


def test_usage(folder):
    status, _, text = run(folder, "", "--only", "nonsense")
    assert status == 2 and "nonsense" in text


def test_targets():
    row = Row("row")
    row.must("not a number", math.nan, least=1)
    assert row.result == "failed"
    row = Row("row")
    row.must("slow", 0.5, least=1, judged=False)
    row.must("fast", 2, least=1)
    row.must("small", 2, most=3)
    row.must("for the reader", 0, aim=1)
    assert row.result == "passed"
    row.must("large", 4, most=3)
    assert row.result == "failed" and row.reason == "large is 4, expected <= 3"


def main():
    targets.turns.PAUSE_SECONDS = 0
    targets.ROUNDS = 2
    with tempfile.TemporaryDirectory() as name:
        for function in (test_all_is_well, test_on_a_gpu, test_too_slow, test_broken_programs, test_missing_programs,
                         test_hanging_programs, test_ended_from_outside, test_libraries, test_hanging_peers, test_no_gpu, test_usage):
            function(Path(name))
    test_targets()


if __name__ == "__main__":
    main()

"""The parts that prove: the op table, the memory checkers, determinism, training curves, training runs."""

import json
import math
import re
import shutil

from pictures import write_pictures
from runner import Failed, Skipped

# Of test_cuda: one kernel of each kind, small enough for a checker that slows everything down a hundredfold.
SANITIZED = "layer norm*,softmax:*,index gradients*,attention: several*,dropout:*,fill?copy and*"


def run_tests(check, row, program, *filters):
    """Runs a doctest program; the number of test cases that passed."""
    result = check.runner.run([check.programs.require(program), *filters], check.programs.variables, check=False)
    found = re.search(r"test cases:\s+(\d+) \|\s+(\d+) passed \|\s+(\d+) failed", result.stdout)
    if not found:
        raise Failed(f"{program}: exit {result.returncode}, and no summary: {(result.stderr or result.stdout)[-300:].strip()}")
    count, passed, failed = map(int, found.groups())
    row.details[program] = {"passed": passed, "failed": failed}
    if failed or result.returncode != 0:
        errors = re.findall(r"ERROR: (.*)", result.stdout)[:3]
        names = re.findall(r"^TEST CASE:\s+(.*)$", result.stdout, re.M)[:3]
        row.details[program]["errors"] = errors
        raise Failed(f"{program}: {failed} of {count} test cases failed: {'; '.join(names + errors)[:400]}")
    if passed == 0:
        raise Failed(f"{program}: no test case ran")
    if "[skip] no GPU" in result.stdout:
        raise Failed(f"{program} finds no GPU")
    return passed


def parity(check, row):
    """The op table on both devices; on a GPU all tests of the backend, on the CPU (where the suite runs them) the table."""
    if check.cpu:
        row.numbers.append(f"{run_tests(check, row, 'test_cuda', '--source-file=*table_test.cpp')} test case, all rows")
        return
    passed = sum(run_tests(check, row, program) for program in ("test_cuda", "test_cuda_training"))
    row.numbers.append(f"{passed} test cases")


def sanitizer(tool):
    def part(check, row):
        """compute-sanitizer over a selection of the tests."""
        if check.cpu:
            raise Skipped("the tests' CUDA runtime has checks of its own")
        program = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
        if not program:
            raise Skipped("compute-sanitizer is not installed")
        result = check.runner.run([program, "--tool", tool, "--error-exitcode", "9", check.programs.require("test_cuda"),
                                   f"--test-case={SANITIZED}"], check.programs.variables, check=False)
        if "Device not supported" in result.stdout + result.stderr:
            raise Skipped("compute-sanitizer does not support this device here")
        summary = re.findall(r"(ERROR SUMMARY.*|RACECHECK SUMMARY.*)", result.stdout + result.stderr)
        found = re.search(r"test cases:\s+(\d+) \|\s+(\d+) passed", result.stdout)
        if result.returncode != 0 or not summary or not found or int(found.group(2)) == 0:
            told = summary[-1] if summary else (result.stderr or result.stdout)[-300:].strip()
            raise Failed(f"exit {result.returncode}: {told}")
        row.numbers.append(f"{found.group(2)} test cases; {summary[-1].split('SUMMARY:')[-1].strip()}")

    return part


def settings(check, extra):
    """A small model with everything random in it, as --set words."""
    small = {"model.name": "vit_tiny", "model.in_channels": 1, "model.num_classes": 4, "attention.phi": "x3",
             "data.name": "idx", "data.root": str(check.data), "schedule.name": "constant", "optimizer.lr": 1e-3,
             "train.log_every_steps": 1, "train.checkpoint_every_steps": 0}
    if check.cpu:
        small.update({"model.image_size": 8, "model.patch_size": 4, "model.embed_dim": 32, "model.depth": 2,
                      "model.num_heads": 1, "train.batch_size": 8})
    else:
        small.update({"model.image_size": 28, "model.patch_size": 7, "model.embed_dim": 96, "model.depth": 4,
                      "model.num_heads": 3, "train.batch_size": 64})
    return {**small, **extra}


def train(check, name, device, extra):
    """Trains into a fresh folder; (folder, what it printed)."""
    if not check.data.exists():
        write_pictures(check.data, size=8 if check.cpu else 28, train=96 if check.cpu else 768, test=48 if check.cpu else 256)
    config = check.work / f"{name}.json"
    tree = {}
    for key, value in settings(check, extra).items():
        section, leaf = key.split(".")
        tree.setdefault(section, {})[leaf] = value
    config.write_text(json.dumps(tree))
    out = check.work / name
    shutil.rmtree(out, ignore_errors=True)
    done = check.runner.run([check.programs.require("vit_train"), "--config", config, "--out", out, "--device", device,
                             "--quiet"], check.programs.variables)
    return out, done.stdout


def trained(folder):
    """The rows of a run's steps."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row.get("event") == "train"]


def losses(folder):
    return [row["loss"] for row in trained(folder)]


RANDOM = {"model.dropout": 0.1, "model.drop_path": 0.1, "attention.dropout": 0.1}


def same_bytes(check, what, steps, runs):
    """Trains with each of `runs` (settings), and compares with the first; the number of bytes of its checkpoint."""
    folders = [train(check, f"determinism-{i}", "cuda:0", {**extra, "train.max_steps": steps})[0] for i, extra in enumerate(runs)]
    first, *others = (folder / "checkpoints" / f"step-{steps:06}" for folder in folders)
    compared = 0
    for name in ("model.safetensors", "state.safetensors"):
        one = (first / name).read_bytes()
        for number, checkpoint in enumerate(others, 2):
            other = (checkpoint / name).read_bytes()
            if one != other:
                at = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
                raise Failed(f"{what}: {name} differs between two runs (1 and {number}), from byte {at} of {len(one)} on")
        compared += len(one)
    return compared


def determinism(check, row):
    """Runs of the same steps give the same bytes: with everything random; and, without, started as CUDA graphs or not."""
    steps, captured = 50, 10 if check.cpu else 50
    compared = same_bytes(check, "dropout", steps, [RANDOM, RANDOM])
    row.numbers.append(f"{steps} steps twice, {compared} bytes equal")
    same_bytes(check, "capture on, on, off", captured, [{"train.capture": wish} for wish in ("on", "on", "off")])
    row.numbers.append(f"{captured} steps captured twice and not captured, equal")


def curves(check, row):
    """20 steps on the CPU and on the GPU: the losses agree."""
    steps = {"train.max_steps": 20}
    expected = losses(train(check, "curve-cpu", "cpu", steps)[0])
    row.details["cpu"] = expected
    for precision, most in (("f32", 1e-3), ("bf16", 5e-2), ("f16", 5e-2)):
        if check.cpu and precision == "f16":
            continue  # the suite has it; three minutes are short
        out, _ = train(check, f"curve-{precision}", "cuda:0", {**steps, "train.precision": precision})
        got = losses(out)
        row.details[precision] = got
        if len(got) != len(expected) or len(got) != 20:
            raise Failed(f"{precision}: {len(got)} losses on the GPU, {len(expected)} on the CPU")
        worst = max(abs(a - b) / max(1.0, abs(b)) if math.isfinite(a) else math.inf for a, b in zip(got, expected))
        row.must(f"{precision}, largest difference of a loss", worst, most=most)
        if precision == "f16":  # the CPU's run skips none
            row.numbers.append(f"f16, skipped steps {trained(out)[-1]['skipped_steps']}")


def training(check, row):
    """Short runs learn what there is to learn."""
    for precision in ("bf16",) if check.cpu else ("f32", "bf16", "f16"):
        _, told = train(check, f"train-{precision}", "cuda:0",
                        {"train.precision": precision, "train.epochs": 4 if check.cpu else 8, "optimizer.lr": 2e-3})
        found = re.search(r"top-1 ([\d.]+) %", told)
        if not found:
            raise Failed(f"{precision}: no accuracy in «{told.strip()[-200:]}»")
        row.must(f"{precision}, % right of 4 classes", float(found.group(1)), least=40 if check.cpu else 80)

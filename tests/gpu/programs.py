"""Which programs the check runs, and what they need to start: the bundle's, those of a build, or a build made here."""

import glob
import os
import sys
import tarfile
from pathlib import Path

from runner import Failed, Skipped, last_words

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("test_cuda", "test_cuda_training", "polygrad_bench", "vit_train")
LIBRARY = "libcublasLt.so.*"


class Programs:
    """Paths by name; `variables`: of their environment."""

    def __init__(self, folder, prefix=""):
        self.folder = Path(folder)
        self.prefix = prefix  # of benchmark and trainer: on the CPU those with the tests' CUDA runtime
        self.variables = {"POLYGRAD_SOURCE_DIR": str(ROOT)}

    def path(self, name):
        own = self.folder / name
        return own if name.startswith("test_") else self.folder / (self.prefix + name)

    def require(self, name):
        """The path, or Failed."""
        path = self.path(name)
        if not os.access(path, os.X_OK):
            raise Failed(f"{path.name} is not there; it was looked for in {shown(self.folder)}")
        return path


def shown(path):
    path = Path(path)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def library_folders():
    """Folders that have cuBLASLt: of the CUDA Toolkit, or of Python packages (PyTorch brings it)."""
    sites = {Path(entry) for entry in sys.path if entry.endswith("-packages")}
    environments = [Path(python).parent.parent for python in interpreters() if "/" in python]
    for pattern in (*(f"{environment}/lib/python3*/site-packages" for environment in environments),
                    "/usr/local/lib/python3*/*-packages", "/usr/lib/python3/dist-packages"):
        sites.update(Path(found) for found in glob.glob(pattern))
    patterns = [f"{os.environ[name]}/lib64" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    patterns += ["/usr/local/cuda/lib64", "/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib",
                 "/usr/lib/x86_64-linux-gnu"]
    patterns += [f"{site}/nvidia/{part}/lib" for site in sorted(sites) for part in ("cu1?", "cublas")]
    found = []
    for pattern in patterns:
        for folder in sorted(glob.glob(pattern)):
            if glob.glob(f"{folder}/{LIBRARY}") and folder not in found:
                found.append(folder)
    return found


def starts(programs, runner):
    """"" where the programs start and one of them computes on the GPU; else why not."""
    try:
        for name in NAMES:
            programs.require(name)
        runner.run([programs.path("polygrad_bench"), "--version"], programs.variables, most=20)
        runner.run([programs.path("polygrad_bench"), "gemm", "--device", "cuda:0", "--m", "64", "--k", "64", "--n", "64",
                    "--ceiling", "64", "--pairs", "1", "--quiet"], programs.variables, most=60)
    except Failed as reason:
        return str(reason)
    return ""


def unpacked(bundle, work):
    """The folder with bin/ and headers/."""
    archive = bundle / "programs.tar.xz"
    if not archive.exists():
        return bundle
    folder = work / "bundle"
    with tarfile.open(archive) as packed:
        packed.extractall(folder)
    return folder


def find(runner, row, bundle, work):
    """The first set that starts: the bundle with the libraries of one folder after another, then a build made here."""
    before = os.environ.get("LD_LIBRARY_PATH", "")
    folder = unpacked(bundle, work)
    reasons = row.details["bundle"] = []
    for libraries in ["", *library_folders()]:
        programs = Programs(folder / "bin")
        programs.variables["LD_LIBRARY_PATH"] = ":".join(part for part in (before, libraries) if part)
        reason = starts(programs, runner)
        if not reason:
            whose = "PyTorch" if "-packages/" in libraries else "the toolkit"
            row.numbers.append(f"the bundle starts{f', with the cuBLASLt of {whose}' if libraries else ''}")
            return programs
        if reason not in reasons:
            reasons.append(reason)
        if "no CUDA device was found" in reason:
            raise Failed(reason)  # neither a library nor a build changes that
    return build_here(runner, row, folder / "headers", "; ".join(reasons))


def build_here(runner, row, headers, reason):
    """A build for the present GPU."""
    variables = {"JOBS": str(len(os.sched_getaffinity(0)))}
    if headers.exists():
        variables["POLYGRAD_DEPS_DIR"] = str(headers)
    built = runner.run([ROOT / "tests/gpu/bundle.sh", "--here"], variables, check=False)
    if built.returncode != 0:
        raise Failed(f"the bundle does not start ({reason}), and no build came about here: {last_words(built)}")
    programs = Programs(ROOT / "build/gpu-native/bin")
    programs.variables["LD_LIBRARY_PATH"] = ":".join(filter(None, [os.environ.get("LD_LIBRARY_PATH", ""), *library_folders()]))
    again = starts(programs, runner)
    if again:
        raise Failed(f"the bundle does not start ({reason}), nor does what was built here: {again}")
    row.numbers.append(f"built here, since the bundle does not start: {reason}")
    return programs


def interpreters():
    """Where Python packages such as PyTorch may be: POLYGRAD_PYTHON, that of make peers, this one, others."""
    noted = ROOT / "build/peers/python"
    found = [os.environ.get("POLYGRAD_PYTHON", ""), noted.read_text().strip() if noted.exists() else "", sys.executable]
    found += ["python3", *sorted(glob.glob("/opt/*/bin/python3")), *sorted(glob.glob("/opt/*/.venv/bin/python3"))]
    return list(dict.fromkeys(filter(None, found)))


def find_python(runner, device):
    """(interpreter, version) that has PyTorch, and for cuda one that finds the GPU; or Skipped."""
    reason = "PyTorch is not installed"
    ask = "import torch; print(torch.__version__, torch.cuda.is_available())"
    for python in interpreters():
        try:
            answer = runner.run([python, "-c", ask], most=60, check=False)
        except Failed:
            continue
        if answer.returncode != 0:
            continue
        version, cuda = answer.stdout.split()[-2:]  # what else is said comes before
        if device == "cpu" or cuda == "True":
            return python, version
        reason = f"PyTorch {version} finds no GPU"
    raise Skipped(reason)

"""Environments that a peer is measured in: named parts joined by +, such as jemalloc+thp.

    default      nothing is set
    best         what tune.py found fastest on this machine; before it ran, the first allocator of FALLBACK that is there
    keep         glibc's malloc keeps freed memory
    jemalloc     jemalloc, which keeps freed memory          (Debian: libjemalloc2)
    tcmalloc     tcmalloc, which keeps freed memory          (Debian: libtcmalloc-minimal4)
    thp          huge pages for the allocator's memory, where the kernel leaves that to programs
    iomp         Intel's OpenMP in place of GNU's            (pip: intel-openmp, beside the interpreter)
    bind         each OpenMP thread stays on its core
    spin         OpenMP threads wait actively
    flush        denormals are flushed to zero

Most take effect when a process starts, so enter() starts the interpreter again, once, before the framework is imported.
"""

import glob
import os
import sys
from pathlib import Path

ENTERED = "POLYGRAD_PEER_ENVIRONMENT"  # set in the interpreter that was started again: the variables, for the report
BEST_FILE = Path(__file__).resolve().parents[3] / "build/peers/best"
FALLBACK = ("jemalloc+thp", "tcmalloc", "keep+thp")
# Left alone, these would make one user's `default` another's best.
SETTINGS = ("OPENBLAS_", "MKL_", "KMP_", "GOMP_", "OMP_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "TORCHINDUCTOR_", "XLA_")


def library(part):
    """The shared library of a part, or None."""
    places = {
        "jemalloc": ["/usr/lib/*/libjemalloc.so*", "/usr/lib64/libjemalloc.so*"],
        "tcmalloc": ["/usr/lib/*/libtcmalloc_minimal.so*", "/usr/lib/*/libtcmalloc.so*", "/usr/lib64/libtcmalloc*.so*"],
        "iomp": [str(Path(sys.executable).parent.parent / "lib/libiomp5.so")],
    }
    return next((found for place in places[part] for found in sorted(glob.glob(place))), None)


def available(name):
    return all(library(part) for part in name.split("+") if part in ("jemalloc", "tcmalloc", "iomp"))


def resolve(name):
    """`best` as the parts it stands for."""
    if name != "best":
        return name
    if BEST_FILE.exists() and available(BEST_FILE.read_text().strip()):
        return BEST_FILE.read_text().strip()
    return next(filter(available, FALLBACK))


def variables(name, threads):
    """The variables of an environment."""
    parts = resolve(name).split("+")
    settings, preload = {}, []
    for part in parts:
        if part in ("jemalloc", "tcmalloc", "iomp"):
            if not library(part):
                raise SystemExit(f"error: --environment {name}: the library of {part} is not installed")
            preload.append(library(part))
        elif part not in ("default", "keep", "thp", "bind", "spin", "flush"):
            raise SystemExit(f"error: --environment {name}: {part} is unknown; see environment.py")
    if "jemalloc" in parts:
        settings["MALLOC_CONF"] = "dirty_decay_ms:-1,muzzy_decay_ms:-1" + (",thp:always" if "thp" in parts else "")
    if "keep" in parts:
        settings.update(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_=str(1 << 40), MALLOC_TOP_PAD_=str(1 << 28))
    if "thp" in parts and "jemalloc" not in parts:
        settings["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    if "iomp" in parts:
        settings.update(KMP_BLOCKTIME="1", KMP_AFFINITY="granularity=fine,compact,1,0")
    if "bind" in parts:
        settings.update(OMP_NUM_THREADS=str(threads), OMP_PROC_BIND="close", OMP_PLACES="cores")
    if "spin" in parts:
        settings["OMP_WAIT_POLICY"] = "active"
    if preload:
        settings["LD_PRELOAD"] = ":".join(preload)
    return settings


def enter(name, threads):
    """Starts this script again in the environment, unless that has been done."""
    if ENTERED in os.environ:
        return
    settings = variables(name, threads)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(SETTINGS)}
    # File names without folders: the report shows them, and a folder is of no interest to its reader.
    told = {key: ":".join(Path(one).name for one in value.split(":")) if key == "LD_PRELOAD" else value
            for key, value in settings.items()}
    clean[ENTERED] = " ".join(f"{key}={value}" for key, value in sorted(told.items()))
    os.execve(sys.executable, [sys.executable, *sys.argv], {**clean, **settings})


def entered():
    return os.environ.get(ENTERED, "")

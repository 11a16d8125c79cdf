#!/usr/bin/env python3
"""Rules of the tree that no compiler checks. Prints each breach as FILE: what is wrong, and exits 1 where there is one.

The rules: includes follow the layers (engine <- ops <- models <- apps/training <- apps; engine <- data <- apps/training),
Eigen stays in ops/cpu/*.cpp, third-party headers stay out of our headers, files stay short, headers have #pragma once,
formatting, no path of a machine in any text, shell scripts pass shellcheck. --self-test bends copies of the tree's rules
and expects to be told.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = {".h", ".cpp", ".cu", ".cuh"}
MAX_LINES = 900
MAX_README_LINES = 60
CLANG_FORMAT_MAJOR = 14

# A file under the first folder that matches may include from these folders, and no other of ours.
LAYERS = [
    ("tests/reference/", ["tests/reference/"]),
    ("tests/embedding/", ["own_"]),  # an application, with files and third-party libraries of its own
    ("tests/", ["engine/", "ops/", "models/", "data/", "apps/training/", "tests/"]),
    # Compiled for one instruction set: a function with a body, taken from here by the linker, would not run elsewhere.
    ("ops/cpu/", ["ops/kernels/", "ops/cpu/", "engine/tensor_ref.h", "engine/parallel.h", "engine/workspace.h",
                  "engine/philox.h", "engine/math.h", "engine/bfloat16.h", "engine/profile_hooks.h",
                  "ops/gemm_provider.h"]),
    ("ops/cuda/", ["ops/kernels/", "ops/cuda/", "engine/", "ops/tf32.h"]),
    ("ops/kernels/", ["ops/kernels/", "engine/", "ops/cpu/instructions.h"]),
    ("ops/", ["engine/", "ops/"]),
    ("engine/", ["engine/"]),
    ("models/", ["engine/", "ops/", "models/"]),
    ("data/", ["engine/", "data/"]),
    ("apps/training/", ["engine/", "ops/", "models/", "data/", "apps/training/"]),
    ("apps/", ["engine/", "ops/", "models/", "data/", "apps/"]),
]
# Examples and the embedding tests are written as an application would be.
APPLICATIONS = ("apps/examples/", "tests/embedding/", "tests/docs/")
THIRD_PARTY = re.compile(r"^(unsupported/)?(Eigen|fmt|nlohmann|CLI|doctest)/|^(stb_|dnnl|cublas|cudnn|turbojpeg|omp\.h)")
# Where a header of ours may name a third-party one: internal headers, never installed.
THIRD_PARTY_HEADERS = {"engine/format.h"}
# Standard headers whose inline functions a kernel file must not compile for its own instruction set.
FOREIGN_TO_KERNELS = {"vector", "string", "functional", "map", "memory", "iostream", "sstream", "regex", "unordered_map"}
FORBIDDEN_WORDS = re.compile(r"/(work|home|root)/[a-z]|/tmp/\w+_jobs|\b(pypi|pythonhosted|npmjs|deb\.debian)\.org")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def includes(text):
    """(line number, '<' or '"', path) of each include."""
    for number, line in enumerate(text.splitlines(), 1):
        found = INCLUDE.match(line)
        if found:
            yield number, found.group(1), found.group(2)


def check_layers(path, text):
    allowed = next((folders for prefix, folders in LAYERS if path.startswith(prefix)), None)
    if allowed is None:
        yield "code belongs in one of the folders of docs/architecture.md"
        return
    for number, kind, target in includes(text):
        if kind == "<":
            if target.startswith("polygrad/") and not path.startswith(APPLICATIONS):
                yield f'line {number}: inside the tree, include "{target.removeprefix("polygrad/")}"'
            if path.startswith("ops/cpu/") and target in FOREIGN_TO_KERNELS:
                yield f"line {number}: <{target}> in a kernel file; take scratch memory from the Workspace"
        elif not target.startswith(tuple(allowed)):
            yield f'line {number}: includes "{target}"; files here may include {", ".join(allowed)}'


def check_third_party(path, text):
    for number, _, target in includes(text):
        if path.startswith("tests/embedding/"):
            continue
        if re.match(r"(unsupported/)?Eigen/", target) and not (path.startswith("ops/cpu/") and path.endswith(".cpp")):
            yield f"line {number}: Eigen outside ops/cpu/*.cpp"
        elif path.endswith((".h", ".cuh")) and THIRD_PARTY.match(target) and path not in THIRD_PARTY_HEADERS:
            if not path.startswith("tests/"):
                yield f"line {number}: third-party header <{target}> in a header"


def check_size(path, text):
    lines = text.count("\n")
    if lines > MAX_LINES:
        yield f"{lines} lines; a source file has at most {MAX_LINES}"


def check_header(path, text):
    if path.endswith((".h", ".cuh")):
        if not re.search(r"^#pragma once$", text, re.M):
            yield "no #pragma once"
        if not text.startswith("//"):
            yield "a header starts with what the file is"


def check_readme(path, text):
    if path.endswith("/README.md") and text.count("\n") > MAX_README_LINES:
        yield f"{text.count(chr(10))} lines; a folder's README has at most {MAX_README_LINES}"


def check_words(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        found = FORBIDDEN_WORDS.search(line)
        if found and path != "tests/lint/lint.py":
            yield f"line {number}: '{found.group(0)}': a path or host of some machine"


CHECKS_OF_CODE = [check_layers, check_third_party, check_size, check_header]
CHECKS_OF_TEXT = [check_readme, check_words]


def check_text(path, text):
    checks = (CHECKS_OF_CODE if Path(path).suffix in CODE else []) + CHECKS_OF_TEXT
    return [f"{path}: {breach}" for check in checks for breach in check(path, text)]


def tracked_files():
    listing = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                             check=True, capture_output=True, text=True).stdout
    return sorted(name for name in listing.split("\0") if name and (ROOT / name).is_file())


def check_format(files):
    program = shutil.which("clang-format")
    if not program:
        print("notice: clang-format is not installed; formatting is not checked")
        return []
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    major = int(re.search(r"version (\d+)", version).group(1))
    if major != CLANG_FORMAT_MAJOR:
        print(f"notice: clang-format {major} is installed; formatting is checked with {CLANG_FORMAT_MAJOR} only")
        return []
    code = [name for name in files if Path(name).suffix in CODE]
    result = subprocess.run([program, "--dry-run", "-Werror", *code], cwd=ROOT, capture_output=True, text=True)
    bad = sorted({line.split(":")[0] for line in result.stderr.splitlines() if "-Wclang-format-violations" in line})
    return [f"{name}: not formatted; run `make format`" for name in bad]


def check_scripts(files):
    program = shutil.which("shellcheck")
    if not program:
        print("notice: shellcheck is not installed; shell scripts are not checked")
        return []
    scripts = [name for name in files if (ROOT / name).read_bytes()[:64].startswith((b"#!/usr/bin/env bash", b"#!/bin/bash"))]
    result = subprocess.run([program, "-f", "gcc", *scripts], cwd=ROOT, capture_output=True, text=True)
    return result.stdout.splitlines()


def self_test():
    """Each of these texts breaks one rule; a check that lets one pass is itself broken."""
    head = "// What this is.\n#pragma once\n"
    bent = [
        ("engine/bent.h", head + '#include "models/nn/module.h"\n', "includes"),
        ("engine/bent.h", head + '#include "ops/unary.h"\n', "includes"),
        ("ops/bent.h", head + '#include "models/zoo.h"\n', "includes"),
        ("models/bent.h", head + '#include "data/dataset.h"\n', "includes"),
        ("data/bent.h", head + '#include "ops/unary.h"\n', "includes"),
        ("data/bent.h", head + '#include "models/zoo.h"\n', "includes"),
        ("apps/training/bent.h", head + '#include "apps/vit_train/main.h"\n', "includes"),
        ("tests/reference/bent.h", head + '#  include "ops/unary.h"\n', "includes"),
        ("ops/cpu/bent.cpp", '#include "engine/tensor.h"\n', "includes"),
        ("ops/cpu/bent.cpp", "#include <vector>\n", "kernel"),
        ("ops/bent.cpp", '#include "dispatch.h"\n', "includes"),
        ("ops/bent.cpp", "#include <polygrad/engine/tensor.h>\n", "inside the tree"),
        ("ops/bent.cpp", "#include <Eigen/Core>\n", "Eigen"),
        ("ops/cpu/bent.h", head + "#include <Eigen/Core>\n", "Eigen"),
        ("models/bent.h", head + "#include <nlohmann/json.hpp>\n", "third-party"),
        ("models/bent.h", "// What this is.\n", "pragma"),
        ("engine/bent.cpp", "\n" * (MAX_LINES + 1), "lines"),
        ("engine/README.md", "\n" * (MAX_README_LINES + 1), "lines"),
        ("docs/bent.md", "see /" + "home/someone\n", "machine"),
        ("stray/bent.cpp", "\n", "belongs"),
    ]
    fine = [
        ("apps/training/fine.h", head + '#include "data/dataset.h"\n#include "models/zoo.h"\n'),
        ("ops/cpu/fine.cpp", '#include <Eigen/Core>\n#include "ops/kernels/norm.h"\n#include "engine/math.h"\n'),
        ("apps/examples/fine/main.cpp", "#include <polygrad/polygrad.h>\n"),
    ]
    failures = [f"the self-test expected a complaint about: {path}: {text.strip()[-60:]!r}"
                for path, text, word in bent if not any(word in breach for breach in check_text(path, text))]
    failures += [f"the self-test expected no complaint: {breach}" for path, text in fine for breach in check_text(path, text)]
    return failures


def main():
    breaches = self_test()
    if "--self-test" not in sys.argv[1:]:
        files = tracked_files()
        for name in files:
            data = (ROOT / name).read_bytes()
            if b"\0" not in data[:4096]:
                breaches += check_text(name, data.decode("utf-8", "replace"))
        breaches += check_format(files) + check_scripts(files)
        print(f"lint: {len(files)} files, {len(breaches)} breaches")
    for breach in breaches:
        print(breach)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Keeps README.md and docs/ true: their C++ is compiled, their excerpts and links are compared with the tree.

    snippets.py extract FOLDER    writes the snippets as .cpp files; prints "program FILE" or "body FILE" for each
    snippets.py check             excerpts and relative links; exits 1 where one is wrong

A fenced block says after ```cpp what it is:
    ```cpp                        the body of a function (its #include lines are moved to the top)
    ```cpp declarations           code outside a function
    ```cpp program                a whole program; the suite also runs it, and it must exit with 0
    ```cpp excerpt=ops/norm.cpp   found in that file, line by line in this order, "…" alone standing for lines left out
Each sees <polygrad/polygrad.h> and `using namespace polygrad`, as an application does; a program brings its own.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\S*)\s*(.*)$")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)]*)?\)")


def documents():
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for folder in ("engine", "ops", "models", "data", "apps", "apps/training", "tests", "third_party"):
        found.append(ROOT / folder / "README.md")
    return [path for path in found if path.is_file()]


def blocks(path):
    """(line of the first line inside, what kind, lines) of each C++ block."""
    start, kind, lines = None, None, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if start is None and fence and fence.group(1):
            start, kind, lines = number + 1, (fence.group(1), fence.group(2).strip()), []
        elif start is not None and line.startswith("```"):
            if kind[0] == "cpp":
                yield start, kind[1] or "body", lines
            start = None
        elif start is not None:
            lines.append(line)


def write_if_different(path, text):
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def extract(folder):
    folder.mkdir(parents=True, exist_ok=True)
    written = set()
    for path in documents():
        name = str(path.relative_to(ROOT))
        stem = re.sub(r"\W+", "_", name.removesuffix(".md"))
        includes, parts = ["#include <polygrad/polygrad.h>"], []
        for start, kind, lines in blocks(path):
            if kind == "program":
                file = folder / f"{stem}_{start}.cpp"
                write_if_different(file, f'#line {start} "{name}"\n' + "\n".join(lines) + "\n")
                written.add(file)
                print("program", file)
            elif kind in ("body", "declarations"):
                includes += [line for line in lines if line.startswith("#include")]
                code = ["" if line.startswith("#include") else line for line in lines]
                text = f'#line {start} "{name}"\n' + "\n".join(code) + "\n"
                if kind == "body":
                    text = f"[[maybe_unused]] void snippet_{start}() {{\n{text}}}\n"
                parts.append(f"namespace at_line_{start} {{\n{text}}}\n")
            elif not kind.startswith("excerpt="):
                sys.exit(f"error: {name}:{start - 1}: a C++ block is a body, declarations, program or excerpt=FILE, not '{kind}'")
        if parts:
            file = folder / f"{stem}.cpp"
            text = "\n".join(dict.fromkeys(includes)) + "\n\nusing namespace polygrad;\n\n" + "\n".join(parts)
            write_if_different(file, text)
            written.add(file)
            print("body", file)
    for stale in set(folder.glob("*.cpp")) - written:
        stale.unlink()


def normal(line):
    return " ".join(line.split())


def excerpt_is_in(lines, text):
    """Whether the lines follow each other in the text; a line "…" lets any number of lines pass."""
    wanted = [normal(line) for line in lines if normal(line)]
    have = [normal(line) for line in text.splitlines() if normal(line)]

    def match(position, index):
        while index < len(wanted):
            if wanted[index] in ("…", "// …"):
                return any(match(later, index + 1) for later in range(position, len(have) + 1))
            if position >= len(have) or have[position] != wanted[index]:
                return False
            position, index = position + 1, index + 1
        return True

    return any(match(position, 0) for position in range(len(have)))


def check():
    wrong = []
    for path in documents():
        name = path.relative_to(ROOT)
        for start, kind, lines in blocks(path):
            if kind.startswith("excerpt="):
                source = ROOT / kind.removeprefix("excerpt=")
                if not source.is_file():
                    wrong.append(f"{name}:{start}: there is no {kind.removeprefix('excerpt=')}")
                elif not excerpt_is_in(lines, source.read_text()):
                    wrong.append(f"{name}:{start}: no longer what {source.relative_to(ROOT)} says")
        outside = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
        for link in LINK.finditer(outside):
            target = link.group(1)
            if "://" not in target and not (path.parent / target).exists():
                wrong.append(f"{name}: the link to {target} leads nowhere")
    print("\n".join(wrong) or f"{len(documents())} documents: excerpts and links are right")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["extract"] and len(sys.argv) == 3:
        extract(Path(sys.argv[2]))
    elif sys.argv[1:] == ["check"]:
        sys.exit(check())
    else:
        sys.exit(__doc__)

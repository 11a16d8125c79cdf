#!/usr/bin/env python3
"""Compares the messages that docs/troubleshooting.md quotes with the texts in the sources.

    python3 quotes.py            exit code 1 and the messages that no source has

A message is the first cell of a table's row, in backquotes; "…" stands for what differs. Its fixed parts must all stand in
one text of the sources, in that order.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/troubleshooting.md"
FOLDERS = ("apps", "data", "engine", "models", "ops")
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def texts():
    """The string literals of the sources; those that only blanks part are one. Fields of format are "…"."""
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".cpp", ".h", ".cu"):
                continue
            source = re.sub(r"^\s*//.*$", "", path.read_text(encoding="utf-8"), flags=re.M)
            end, text = None, ""
            for match in LITERAL.finditer(source):
                if end is not None and source[end:match.start()].strip() == "":
                    text += match.group(1)
                else:
                    found.append(text)
                    text = match.group(1)
                end = match.end()
            found.append(text)
    plain = [text.replace('\\"', '"').replace("\\n", " ").replace("{{", "{").replace("}}", "}") for text in found]
    return [re.sub(r"\{[^{}]*\}", "…", text) for text in plain]


def quotes():
    """Line number and message."""
    head = False
    for number, line in enumerate(PAGE.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("| message "):
            head = True
        elif not line.startswith("|"):
            head = False
        match = re.match(r"\| `([^`]+)` \|", line)
        if head and match:
            yield number, match.group(1)
        elif head and not line.startswith(("| message ", "|---")):
            sys.exit(f"error: {PAGE}:{number}: a row's first cell is a message in backquotes")


def stands_in(parts, text):
    at = 0
    for part in parts:
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def main():
    corpus, wrong, count = texts(), [], 0
    for number, quote in quotes():
        count += 1
        parts = [part.strip() for part in quote.split("…") if part.strip()]
        if not any(stands_in(parts, text) for text in corpus):
            wrong.append(f"{PAGE.relative_to(ROOT)}:{number}: no source says this: {quote}")
    if count < 20:
        wrong.append(f"{PAGE.relative_to(ROOT)}: {count} messages; expected the page's tables")
    print("\n".join(wrong) or f"{count} messages")
    return 1 if wrong else 0


sys.exit(main())

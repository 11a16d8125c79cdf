#!/usr/bin/env python3
"""Prints the lines of polygrad_bench beside those of the peers: compare.py OURS.jsonl PEERS.jsonl (may be missing)."""

import json
import sys
from pathlib import Path

SHAPE = {
    "gemm": ("m", "k", "n", "trans_a", "trans_b"),
    "attention": ("phi", "batch", "heads", "tokens", "head_dim"),
    "vit_step": ("model", "phi", "image", "patch", "batch"),
    "op": ("name", "shape"),
}


def read(path):
    path = Path(path)
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()] if path.exists() else []


def key(line):
    return (line["bench"], *(str(line.get(name)) for name in SHAPE[line["bench"]]))


def milliseconds(line):
    if "step_ms" in line:
        return line["step_ms"]
    if "forward_ms" in line:
        return line["forward_ms"] + line["backward_ms"]
    return line.get("ms")


def describe(line):
    words = []
    for name in SHAPE[line["bench"]]:
        value = line.get(name)
        if value is True:
            words.append(name)
        elif value is not False and value is not None:
            words.append("x".join(map(str, value)) if isinstance(value, list) else str(value))
    return f"{line['bench']} " + " ".join(words)


def how(line):
    flags = [name for name in ("sdpa", "linear", "compile") if line.get(name)]
    return f"{line['peer']} {line['version']}, {line['environment']}" + "".join(f", {flag}" for flag in flags)


def main():
    ours, peers = read(sys.argv[1]), read(sys.argv[2])
    width = max([len(describe(line)) for line in ours] + [10])
    print(f"{'work':{width}}  {'ms':>9}  {'GFLOP/s':>8}  {'of 2048^3':>9}")
    for line in ours:
        if line["bench"] == "op":
            forward, backward = line["ns_per_element"], line["backward_ns_per_element"]
            print(f"{describe(line):{width}}  {forward:.3f} ns an element forward, {backward:.3f} backward")
            continue
        own = milliseconds(line)
        print(f"{describe(line):{width}}  {own:9.2f}  {line['gflops']:8.0f}  {line['ratio']:9.2f}")
        for peer in peers:
            if key(peer) != key(line) or (peer.get("linear") and line.get("path") != "linear"):
                continue
            time = milliseconds(peer)
            print(f"{'  ' + how(peer):{width}}  {time:9.2f}  {peer['gflops']:8.0f}  {peer['ratio']:9.2f}"
                  f"  polygrad is {time / own:.2f} x as fast; its 2048^3: {peer['ceiling_gflops']:.0f}, "
                  f"ours: {line['ceiling_gflops']:.0f}")
    if ours:
        print(f"\ngemm {ours[0]['gemm']}, {ours[0]['threads']} threads")
    for settings in sorted({f"{p['environment']}: {p['settings'] or 'no variables'}, {p['threads']} threads" for p in peers}):
        print(f"peer environment {settings}")
    if ours and peers:
        own = max(line["ceiling_gflops"] for line in ours if "ceiling_gflops" in line)
        best = max(line["ceiling_gflops"] for line in peers)
        if best < 0.85 * own:
            print(f"the peer's products reach {best:.0f} GFLOP/s where ours reach {own:.0f}: is its BLAS an optimised one? "
                  "(Debian's python3-torch needs libopenblas0-pthread)")
    if not peers:
        print("no peer's numbers: make peers measures the same work in PyTorch")


if __name__ == "__main__":
    main()

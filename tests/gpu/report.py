#!/usr/bin/env python3
"""report.py [gpu_check.json]: the page docs/results/gpu.md of what check.sh found; without a file, what will be there."""

import json
import re
import sys
from pathlib import Path

HOW = """## How to run it

```sh
make gpu-bundle                     # anywhere with the CUDA Toolkit: programs for sm_90, in build/gpu-bundle
tests/gpu/check.sh                  # on the machine with the GPU, in a copy of the tree with that folder
python3 tests/gpu/report.py build/gpu_check.json >docs/results/gpu.md
```

`tests/gpu/check.sh --cpu` runs all of it without a GPU, as small as can be, in less than three minutes. Where PyTorch with CUDA
is installed, it plays in turns with ours: each program once a round, medians; `torch.compile` in its default mode."""
PARTS = """| part | what it shows |
|---|---|
| `parity` | every row of the op table on the CPU and on the GPU, values and gradients, and the tests of the backend |
| `memcheck`, `racecheck` | compute-sanitizer over one kernel of each kind, where it is installed |
| `determinism` | two runs of 50 steps leave the same bytes; so do two whose steps are captured as a CUDA graph, and one kernel by kernel |
| `curves` | 20 steps on the CPU and on the GPU: f32, bf16, f16 |
| `product` | the matrix rate in each precision; the error of a product in f32 (at most 1e-5) |
| `vit_tiny_softmax` | a training step of ViT-Tiny, 64², patch 4, batch 1024, bf16, against `torch.compile` with fused attention |
| `vit_tiny_x3` | the same with x³/16, against `torch.compile`, and against our softmax |
| `attention_x3` | forward and backward, 4096 tokens, width 64, bf16, against fused softmax attention; the memory it takes |
| `attention_forward` | forward alone, width 128, against FlashAttention-2 |
| `vit_base` | a training step of ViT-Base/16, 224², batch 256, bf16 |
| `linear` | φ = x by the linear path, up to 65536 tokens |
| `ops` | every op beside a copy of the same bytes |
| `training` | short runs in f32, bf16 and f16 learn what there is to learn |"""


def page(found):
    """The page, of the JSON as a dictionary; None: nothing has been measured. Folders of the machine are left out."""
    return re.sub(r"(?<![\w./])/(?:[^\s/|]+/)+", "", "\n".join(lines(found)) + "\n")


def lines(found):
    yield "# On a GPU"
    yield ""
    if found is None or found["cpu"]:
        yield ("Written by `tests/gpu/report.py`. **The GPU backend has not run on a GPU yet**: there are no numbers here. What is "
               "known without one, [cuda.md](../cuda.md) says. `tests/gpu/check.sh` will fill this page with:")
        yield ""
        yield PARTS
        yield ""
        yield HOW
        if found is not None:
            yield ""
            yield f"The check was not run on a GPU, but on the CPU ({found['seconds']:.0f} s)."
        return
    where = found["machine"]
    yield "Written by `tests/gpu/report.py` of what `tests/gpu/check.sh` found; do not edit."
    yield ""
    yield f"- date: {where.get('date', '?')}; {found['seconds']:.0f} s in all"
    yield f"- GPU: {where.get('gpu', '?')}; {where.get('cores', '?')} cores, {where.get('system', '?')}"
    yield f"- polygrad: {'; '.join(where.get('version', ['?'])[:3])}"
    yield from (f"- peer: {number}" for part in found["parts"] if part["name"] == "peers" for number in part["numbers"] or [part["reason"]])
    yield f"- failed: {', '.join(found['failed']) or 'nothing'}"
    if found["unfinished"]:
        yield f"- ended before: {', '.join(found['unfinished'])}"
    yield ""
    yield "| part | result | seconds | numbers |"
    yield "|---|---|---:|---|"
    for part in found["parts"]:
        told = "; ".join(([part["reason"]] if part["reason"] else []) + part["numbers"]).replace("|", "\\|")
        yield f"| `{part['name']}` | {part['result']} | {part['seconds']:.0f} | {told} |"
    targets = [(part["name"], target) for part in found["parts"] for target in part["details"].get("targets", [])]
    if targets:
        yield ""
        yield "## Against the targets"
        yield ""
        yield "| part | what | measured | must | aim |"
        yield "|---|---|---:|---|---:|"
        for name, target in targets:
            aim = "" if target["aim"] is None else f"{target['aim']:g}"
            yield f"| `{name}` | {target['what']} | {target['value']:.3g} | {target['must']} | {aim} |"
    players = [(part["name"], name, told) for part in found["parts"] for name, told in part["details"].get("players", {}).items()]
    if players:
        yield ""
        yield "## Who played"
        yield ""
        yield "| part | program | ms | TFLOP/s | of its own matrix rate | peak MiB |"
        yield "|---|---|---:|---:|---:|---:|"
        for part, name, told in players:
            if "failure" in told:
                yield f"| `{part}` | {name} | not measured: {told['failure']} | | | |"
                continue
            time = told.get("step_ms") or told["forward_ms"] + told["backward_ms"]
            peak = told.get("peak_mib" if "step_ms" in told else "peak_extra_mib")
            yield (f"| `{part}` | {name} | {time:.3g} | {1e-3 * told['gflops']:.3g} | {told['ratio']:.2f} | "
                   f"{'' if peak is None else f'{peak:.0f}'} |")
    yield ""
    yield HOW


if __name__ == "__main__":
    print(page(json.loads(Path(sys.argv[1]).read_text()) if len(sys.argv) > 1 else None), end="")

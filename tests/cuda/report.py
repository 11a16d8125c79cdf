#!/usr/bin/env python3
"""report.py BUILD_DIR: what the kernels of each .cu file take of the machine, from the reports that keep_report.sh kept.

One line a file: kernels, registers (most), bytes spilled, seconds of compilation. Exits 1 where a kernel spills.
"""

import re
import sys
from pathlib import Path

KERNEL = re.compile(r"Compiling entry function '(\w+)'")
SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")


def main():
    total, spilling = 0, []
    print(f"{'file':<34} {'kernels':>7} {'registers':>9} {'spilled':>7} {'seconds':>7}")
    for report in sorted(Path(sys.argv[1]).rglob("*.cu.o.ptxas")):
        kernel, kernels, registers, spilled, seconds = None, 0, 0, 0, 0.0
        for line in report.read_text().splitlines():
            if found := KERNEL.search(line):
                kernel = found.group(1)
                kernels += 1
            elif found := SPILL.search(line):
                if int(found.group(2)) or int(found.group(3)):
                    spilled += int(found.group(2))
                    spilling.append(kernel)
            elif found := USED.search(line):
                registers = max(registers, int(found.group(1)))
            elif line.startswith("seconds "):
                end, start = map(float, line.split()[1:])
                seconds = end - start
        name = str(report).split(".dir/")[-1].removesuffix(".o.ptxas")
        folder = "engine/" if "polygrad_engine" in str(report) else "ops/" if "polygrad_ops" in str(report) else ""
        print(f"{folder + name:<34} {kernels:>7} {registers:>9} {spilled:>7} {seconds:>7.1f}")
        total += kernels
    print(f"{total} kernels, {len(spilling)} of them spill registers")
    for kernel in spilling:
        print(f"spills: {kernel}")
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())

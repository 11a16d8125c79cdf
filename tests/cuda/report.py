#!/usr/bin/env python3
"""report.py BUILD_DIR: what the kernels of each .cu file take of the machine, from the reports that keep_report.sh kept.

One line a file: kernels, registers (most), bytes spilled, tensor-core instructions (of attention and products), seconds
of compilation. Exits 1 where a kernel spills, and where the kernels of a file named …_mma…, which are written for tensor
cores, have none of their instructions.

The instructions are counted in the machine code itself, as cuobjdump -sass would list them: the packages that bring nvcc
need not bring a disassembler. The objects hold it as it is (--no-compress).
"""

import re
import struct
import sys
from pathlib import Path

KERNEL = re.compile(r"Compiling entry function '(\w+)'")
SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
MULTIPLIES = re.compile(r"attention|mma|matmul")
# The low 12 bits of an instruction of 128 bits, since Volta: HMMA (mma.sync), and Hopper's HGMMA (wgmma).
TENSOR_CORE = {0x23C, 0x9F0}
CUDA_ELF = 190  # e_machine


def machine_code(data):
    """The .text sections of all device programs in an object file."""
    at = data.find(b"\x7fELF", 1)  # the first is the object itself
    while at >= 0:
        if struct.unpack_from("<H", data, at + 18)[0] == CUDA_ELF:
            (table,) = struct.unpack_from("<Q", data, at + 40)
            size, count, names = struct.unpack_from("<HHH", data, at + 58)
            sections = [struct.unpack_from("<IIQQQQ", data, at + table + i * size) for i in range(count)]
            for name, _, _, _, offset, length in sections:
                start = at + sections[names][4] + name
                if data.startswith(b".text.", start):
                    yield data[at + offset : at + offset + length]
        at = data.find(b"\x7fELF", at + 4)


def tensor_core_instructions(object_file):
    count = 0
    for code in machine_code(object_file.read_bytes()):
        count += sum(low & 0xFFF in TENSOR_CORE for low, _ in struct.iter_unpack("<QQ", code))
    return count


def main():
    total, spilling, without = 0, [], []
    print(f"{'file':<40} {'kernels':>7} {'registers':>9} {'spilled':>7} {'mma':>6} {'seconds':>7}")
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
        count = "-"
        if kernels and MULTIPLIES.search(name):
            count = tensor_core_instructions(report.with_suffix(""))
            if "_mma" in name and count == 0:
                without.append(folder + name)
        print(f"{folder + name:<40} {kernels:>7} {registers:>9} {spilled:>7} {count:>6} {seconds:>7.1f}")
        total += kernels
    print(f"{total} kernels, {len(spilling)} of them spill registers; matrices outside attention are cuBLASLt's")
    for kernel in spilling:
        print(f"spills: {kernel}")
    for name in without:
        print(f"no tensor-core instruction: {name}")
    return 1 if spilling or without else 0


if __name__ == "__main__":
    sys.exit(main())

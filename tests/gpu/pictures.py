"""The data of the short runs: grey noise in IDX files, dark, bright, or with upright or level stripes: that is the class."""

import random
import struct


def bright(label, x, y):
    return (False, True, x % 4 < 2, y % 4 < 2)[label]


def write_pictures(folder, size, train, test):
    folder.mkdir(parents=True)
    draw = random.Random(1)
    for part, count in (("train", train), ("t10k", test)):
        labels = bytes(draw.randrange(4) for _ in range(count))
        pixels = bytearray()
        for label in labels:
            pixels += bytes(draw.randrange(128) + 128 * bright(label, i % size, i // size) for i in range(size * size))
        head = struct.pack(">I", 0x803) + struct.pack(">III", count, size, size)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head + bytes(pixels))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels)

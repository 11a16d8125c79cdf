#!/usr/bin/env python3
"""Makes the golden files in models/ beside this script: expected values of a whole model, computed by torch and timm.

    python3 make_golden.py            (needs torch and timm; the files are committed, so the tests need neither)

The layout is that of the golden set that POLYGRAD_GOLDEN names; models_golden_test.cpp reads both. This case is what
that set lacks: every elementwise activation, each in a layer of its own, on images and patches that are not square,
with one channel and another MLP ratio. Weights and images are random; all is computed in float64, stored in float32.
"""
import json
import math
import os
import struct

import numpy
import timm
import torch
import torch.nn.functional as F

CASE = "vit_every_phi"
PHI = {  # the last ones grow the fastest: they would hide what comes after them
    "softmax": None,
    "tanh": torch.tanh,
    "relu": F.relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "x": lambda s: s,
    "exp": torch.exp,
    "exp_neg": lambda s: torch.exp(-s),
    "x2": lambda s: s**2,
    "x3": lambda s: s**3,
    "x^4": lambda s: s**4,
}
CONFIG = {
    "arch": "vit",
    "image": [8, 12],
    "patch": [4, 2],
    "channels": 1,
    "dim": 8,
    "heads": 2,
    "depth": len(PHI),
    "mlp_ratio": 2,
    "classes": 3,
    "timm_fn": "vit_tiny_patch16_224",
    "timm_kwargs": {},
    "batch": 3,
    "seed": 7,
    "c": 3.5,
    "phis": ["every"],
    "phi_layers": {"every": list(PHI)},
    "ln_eps": [1e-6],
}


def write_safetensors(path, tensors):
    """float32 and int64 arrays, in the order given."""
    header, offset, parts = {}, 0, []
    for name, array in tensors.items():
        array = numpy.ascontiguousarray(array if array.dtype == numpy.int64 else array.astype(numpy.float32))
        header[name] = {
            "dtype": "I64" if array.dtype == numpy.int64 else "F32",
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
        parts.append(array.tobytes())
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def replace_attention(attention, phi, c, maps, name):
    """timm's attention with phi(S)/c instead of its softmax."""

    def forward(x, *args, **kwargs):
        batch, tokens, dim = x.shape
        qkv = attention.qkv(x).reshape(batch, tokens, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        p = scores.softmax(-1) if phi is None else phi(scores) / c
        maps[name] = p
        return attention.proj((p @ v).transpose(1, 2).reshape(batch, tokens, dim))

    attention.forward = forward


def main():
    config = dict(CONFIG)
    random = numpy.random.RandomState(config["seed"])
    model = timm.create_model(
        config["timm_fn"],
        img_size=tuple(config["image"]),
        patch_size=tuple(config["patch"]),
        in_chans=config["channels"],
        embed_dim=config["dim"],
        num_heads=config["heads"],
        depth=config["depth"],
        mlp_ratio=config["mlp_ratio"],
        num_classes=config["classes"],
    ).double()
    weights = {}
    for name, parameter in model.state_dict().items():
        is_gain = "norm" in name and name.endswith("weight")
        value = random.standard_normal(tuple(parameter.shape)) * (0.1 if is_gain or parameter.dim() == 1 else 0.3)
        weights[name] = (value + (1 if is_gain else 0)).astype(numpy.float32)
    model.load_state_dict({name: torch.from_numpy(value).double() for name, value in weights.items()})
    channels, (height, width) = config["channels"], config["image"]
    images = random.standard_normal((config["batch"], channels, height, width)).astype(numpy.float32)
    labels = random.randint(0, config["classes"], config["batch"]).astype(numpy.int64)

    maps, results = {}, {}
    for i, (block, phi) in enumerate(zip(model.blocks, PHI.values())):
        replace_attention(block.attn, phi, config["c"], maps, f"attn.blocks.{i}")
        block.register_forward_hook(lambda m, a, y, i=i: results.__setitem__(f"act.blocks.{i}", y))
    model.patch_embed.register_forward_hook(lambda m, a, y: results.__setitem__("act.patch_embed", y))
    model.blocks[0].register_forward_pre_hook(lambda m, a: results.__setitem__("act.blocks.0.input", a[0]))
    model.norm.register_forward_hook(lambda m, a, y: results.__setitem__("act.norm", y))

    logits = model(torch.from_numpy(images).double())
    loss = F.cross_entropy(logits, torch.from_numpy(labels))
    loss.backward()
    results = {"logits": logits, "loss": loss.reshape(1), **maps, **results}
    results.update({f"grad.{name}": parameter.grad for name, parameter in model.named_parameters()})
    config["made_with"] = {"torch": torch.__version__, "timm": timm.__version__}

    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models", CASE)
    os.makedirs(folder, exist_ok=True)
    write_safetensors(os.path.join(folder, "weights.safetensors"), weights)
    write_safetensors(os.path.join(folder, "input.safetensors"), {"images": images, "labels": labels})
    write_safetensors(
        os.path.join(folder, "every.safetensors"), {name: value.detach().numpy() for name, value in results.items()}
    )
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=1)
        file.write("\n")
    for name, value in results.items():
        if not name.startswith("grad.blocks"):
            print(f"{name:24} {tuple(value.shape)!s:18} largest {value.detach().abs().max():.4g}")


if __name__ == "__main__":
    main()

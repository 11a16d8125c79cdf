#!/usr/bin/env python3
"""Makes the golden files in lra/ beside this script: the Long Range Arena's transformer with padding, in plain PyTorch.

    python3 make_lra_golden.py        (needs torch and timm; the files are committed, so the tests need neither)

What the set that POLYGRAD_GOLDEN names lacks: gradients with the mean over the valid tokens alone (the default preset).
The layout is that set's, "pooling_mode" VALID. Random weights; float64, stored in float32.
"""

import json
import math
import os

import torch
import torch.nn.functional as F
from make_golden import write_safetensors

PHI = {"softmax": None, "x3": lambda s: s**3, "x": lambda s: s, "exp_neg": lambda s: torch.exp(-s)}
BASE = {
    "embedding_dim": 8,
    "transformer_hidden_dim": 16,
    "num_head": 2,
    "num_layers": 2,
    "vocab_size": 12,
    "max_seq_len": 16,
    "pooling_mode": "VALID",
    "batch": 4,
    "c": 3.5,
    "phis": list(PHI),
}
CASES = {
    "padded": {**BASE, "arch": "lra", "num_classes": 5, "seed": 11, "valid_lengths": [[13, 1, 6, 9]]},
    "padded_pair": {
        **BASE,
        "arch": "lra_two_tower",
        "num_classes": 2,
        "seed": 12,
        "valid_lengths": [[13, 4, 2, 9], [3, 1, 11, 8]],
    },
}


def linear_names(prefix, out, width):
    return {f"{prefix}.weight": (out, width), f"{prefix}.bias": (out,)}


def shapes(config):
    dim, hidden, towers = config["embedding_dim"], config["transformer_hidden_dim"], len(config["valid_lengths"])
    result = {
        "model.embeddings.word_embeddings.weight": (config["vocab_size"], dim),
        "model.embeddings.position_embeddings.weight": (config["max_seq_len"], dim),
    }
    for layer in range(config["num_layers"]):
        at = f"model.transformer_{layer}"
        result.update({f"{at}.norm1.weight": (dim,), f"{at}.norm1.bias": (dim,)})
        for name in ("W_q", "W_k", "W_v", "ff"):
            result.update(linear_names(f"{at}.mha.{name}", dim, dim))
        result.update({f"{at}.norm2.weight": (dim,), f"{at}.norm2.bias": (dim,)})
        result.update(linear_names(f"{at}.mlpblock.0", hidden, dim))
        result.update(linear_names(f"{at}.mlpblock.3", dim, hidden))
    result.update({"model.norm.weight": (dim,), "model.norm.bias": (dim,)})
    result.update(linear_names("seq_classifer.mlpblock.0", hidden, dim if towers == 1 else 4 * dim))
    result.update(linear_names("seq_classifer.mlpblock.2", config["num_classes"], hidden))
    return result


def encode(weights, config, phi, ids):
    """The mean over the tokens that are not 0 of one tower's last layer."""
    dim, heads = config["embedding_dim"], config["num_head"]
    there = ids != 0
    x = weights["model.embeddings.word_embeddings.weight"][ids]
    x = x + weights["model.embeddings.position_embeddings.weight"][: ids.shape[1]]

    def apply(name, value):
        return F.linear(value, weights[name + ".weight"], weights[name + ".bias"])

    def norm(name, value):
        return F.layer_norm(value, (dim,), weights[name + ".weight"], weights[name + ".bias"], 1e-5)

    def split(value):
        return value.reshape(*value.shape[:2], heads, dim // heads).transpose(1, 2)

    for layer in range(config["num_layers"]):
        at = f"model.transformer_{layer}"
        normed = norm(at + ".norm1", x)
        q, k, v = (split(apply(f"{at}.mha.{name}", normed)) for name in ("W_q", "W_k", "W_v"))
        scores = q @ k.transpose(-2, -1) / math.sqrt(dim // heads)
        visible = there[:, None, None, :]
        if phi is None:
            p = scores.masked_fill(~visible, -math.inf).softmax(-1)
        else:
            p = phi(scores) / config["c"] * visible
        x = x + apply(f"{at}.mha.ff", (p @ v).transpose(1, 2).reshape(x.shape))
        x = x + apply(f"{at}.mlpblock.3", F.gelu(apply(f"{at}.mlpblock.0", norm(at + ".norm2", x))))
    return (norm("model.norm", x) * there[..., None]).sum(1) / there.sum(1, keepdim=True)


def classify(weights, towers):
    features = towers[0]
    if len(towers) == 2:
        features = torch.cat([towers[0], towers[1], towers[0] * towers[1], towers[0] - towers[1]], 1)
    head = "seq_classifer.mlpblock"
    hidden = F.relu(F.linear(features, weights[head + ".0.weight"], weights[head + ".0.bias"]))
    return F.linear(hidden, weights[head + ".2.weight"], weights[head + ".2.bias"])


def make_case(folder, config):
    torch.manual_seed(config["seed"])
    weights = {}
    for name, shape in shapes(config).items():
        values = torch.randn(shape, dtype=torch.float64) * 0.4 + (1 if "norm" in name and "weight" in name else 0)
        weights[name] = values.float().double().requires_grad_()  # as stored
    longest = max(max(lengths) for lengths in config["valid_lengths"])
    config["seq_len"] = longest + 2  # two positions that no sample uses
    inputs = {}
    for tower, lengths in enumerate(config["valid_lengths"]):
        ids = torch.zeros(config["batch"], config["seq_len"], dtype=torch.int64)
        for row, length in enumerate(lengths):
            ids[row, :length] = torch.randint(1, config["vocab_size"], (length,))
        inputs[f"input_ids_{tower}"] = ids
    labels = torch.randint(0, config["num_classes"], (config["batch"],))
    os.makedirs(folder, exist_ok=True)
    write_safetensors(f"{folder}/weights.safetensors", {k: v.detach().numpy() for k, v in weights.items()})
    arrays = {name: ids.numpy() for name, ids in inputs.items()}
    write_safetensors(f"{folder}/input.safetensors", {**arrays, "labels": labels.numpy()})
    for name, phi in PHI.items():
        for weight in weights.values():
            weight.grad = None
        logits = classify(weights, [encode(weights, config, phi, ids) for ids in inputs.values()])
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        result = {"logits": logits, "loss": loss.reshape(1), **{"grad." + k: v.grad for k, v in weights.items()}}
        write_safetensors(f"{folder}/{name}.safetensors", {k: v.detach().numpy() for k, v in result.items()})
    with open(f"{folder}/config.json", "w") as file:
        json.dump(config, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    for case, config in CASES.items():
        make_case(os.path.join(os.path.dirname(os.path.abspath(__file__)), "lra", case), config)

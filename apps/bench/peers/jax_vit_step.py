#!/usr/bin/env python3
"""polygrad_bench vit_step, in JAX: the model of vit_step.py, its gradient and AdamW in one jit. See peer.py."""

import time

import peer
from vit import DEPTH, WIDTHS, forward_flops


def parameters(jax, arguments):
    """Weights of normal(0, 0.02), biases 0, norms 1 and 0; the blocks are a list of dictionaries."""
    np = jax.numpy
    width, _ = WIDTHS[arguments.model]
    tokens = (arguments.image // arguments.patch) ** 2 + 1
    keys = iter(jax.random.split(jax.random.key(1), 8 * DEPTH + 8))

    def linear(inputs, outputs):
        return {"w": 0.02 * jax.random.normal(next(keys), (inputs, outputs)), "b": np.zeros(outputs)}

    def norm():
        return {"w": np.ones(width), "b": np.zeros(width)}

    def block():
        return {"norm1": norm(), "qkv": linear(width, 3 * width), "proj": linear(width, width), "norm2": norm(),
                "fc1": linear(width, 4 * width), "fc2": linear(4 * width, width)}

    return {"embed": linear(3 * arguments.patch**2, width), "cls": np.zeros((1, 1, width)),
            "pos": 0.02 * jax.random.normal(next(keys), (1, tokens, width)), "blocks": [block() for _ in range(DEPTH)],
            "norm": norm(), "head": linear(width, arguments.classes)}


def forward(jax, arguments):
    np = jax.numpy
    width, heads = WIDTHS[arguments.model]
    patch, side = arguments.patch, arguments.image // arguments.patch
    head_dim, tokens = width // heads, side * side + 1
    phi = peer.activation(arguments.phi, np, lambda s: jax.nn.gelu(s, approximate=False), jax.nn.elu)
    divisor = peer.divisor(arguments.scale, arguments.phi, side * side)

    def linear(x, p):
        return x @ p["w"] + p["b"]

    def norm(x, p):
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-6) * p["w"] + p["b"]

    def attend(x, p):
        batch = x.shape[0]
        q, k, v = np.transpose(linear(x, p["qkv"]).reshape(batch, tokens, 3, heads, head_dim), (2, 0, 3, 1, 4))
        scores = (q * head_dim**-0.5) @ np.swapaxes(k, -2, -1)
        out = (jax.nn.softmax(scores, -1) if phi is None else phi(scores) * (1 / divisor)) @ v
        return linear(np.swapaxes(out, 1, 2).reshape(batch, tokens, width), p["proj"])

    def logits(p, images):
        batch = images.shape[0]
        patches = images.reshape(batch, 3, side, patch, side, patch).transpose(0, 2, 4, 1, 3, 5)
        x = linear(patches.reshape(batch, side * side, 3 * patch * patch), p["embed"])
        x = np.concatenate([np.broadcast_to(p["cls"], (batch, 1, width)), x], 1) + p["pos"]
        for block in p["blocks"]:
            x = x + attend(norm(x, block["norm1"]), block)
            x = x + linear(jax.nn.gelu(linear(norm(x, block["norm2"]), block["fc1"]), approximate=False), block["fc2"])
        return linear(norm(x, p["norm"])[:, 0], p["head"])

    def loss(p, images, labels):
        return -np.take_along_axis(jax.nn.log_softmax(logits(p, images)), labels[:, None], 1).mean()

    return loss


def main():
    parser = peer.parser(__doc__)
    parser.add_argument("--model", choices=sorted(WIDTHS), default="vit_tiny")
    peer.add_sizes(parser, image=64, patch=4, classes=200, batch=32)
    parser.add_argument("--phi", default="x3")
    parser.add_argument("--scale", default="auto")
    arguments = parser.parse_args()
    jax, product = peer.jax_ready(arguments)
    np = jax.numpy
    imported = peer.status_mib("VmRSS")
    loss_of = forward(jax, arguments)

    def step(p, m, v, count, images, labels):
        value, gradient = jax.value_and_grad(loss_of)(p, images, labels)
        tree = jax.tree_util.tree_map
        m = tree(lambda a, g: 0.9 * a + 0.1 * g, m, gradient)
        v = tree(lambda a, g: 0.999 * a + 0.001 * g * g, v, gradient)
        scale, root = 1e-4 / (1 - 0.9**count), np.sqrt(1 - 0.999**count)
        p = tree(lambda w, a, b: w * (1 - 1e-4 * 0.05 * (w.ndim > 1)) - scale * a / (np.sqrt(b) / root + 1e-8), p, m, v)
        return p, m, v, value

    step = jax.jit(step, donate_argnums=(0, 1, 2))
    p = parameters(jax, arguments)
    state = [p, jax.tree_util.tree_map(np.zeros_like, p), jax.tree_util.tree_map(np.zeros_like, p)]
    images = jax.random.normal(jax.random.key(2), (arguments.batch, 3, arguments.image, arguments.image))
    labels = jax.random.randint(jax.random.key(3), (arguments.batch,), 0, arguments.classes)
    losses = []

    def subject():
        start = time.perf_counter()
        *state[:], value = step(*state, float(len(losses) + 1), images, labels)
        losses.append(float(value))
        jax.block_until_ready(state)
        return time.perf_counter() - start

    subject()
    subject()
    peak = peer.status_mib("VmHWM")
    measured = peer.measure_pairs(product, 3 * forward_flops(arguments) * arguments.batch, arguments, subject)
    values = {"step_ms": 1e3 * measured["seconds"], "images_per_s": arguments.batch / measured["seconds"], **measured}
    values.update(peak_mib=peak, import_mib=imported, loss=losses[-1])
    peer.report("jax", jax.__version__, "vit_step", arguments, values)


if __name__ == "__main__":
    main()

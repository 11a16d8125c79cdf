#!/usr/bin/env python3
"""polygrad_bench lra_step, in PyTorch: the Long Range Arena's transformer as its users write it, full-length sequences,
cross-entropy, AdamW. The attention matrix is materialised (--sdpa: scaled_dot_product_attention, for softmax; --linear:
q (k^T v) by hand, for phi = x). See peer.py."""

import time

import peer
from vit_step import adamw

WIDTH, HEADS, DEPTH, HIDDEN = 64, 2, 2, 128
TASKS = {  # rows of the word table, tokens, classes, sequences of a sample
    "listops": (32, 2048, 10, 1),
    "text": (512, 4096, 2, 1),
    "retrieval": (512, 4096, 2, 2),
    "image": (512, 1024, 10, 1),
    "pathfinder": (512, 1024, 2, 1),
}


def forward_flops(arguments):
    """The matrix-product operations of a forward on one sample."""
    vocabulary, _, classes, towers = TASKS[arguments.task]
    tokens, features = arguments.tokens, WIDTH * (1 if towers == 1 else 4)
    layer = tokens * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN)
    layer += 2 * tokens * WIDTH * (WIDTH // HEADS if arguments.phi == "x" else tokens)
    return 2.0 * (towers * DEPTH * layer + features * HIDDEN + HIDDEN * classes)


def build(torch, arguments):
    nn = torch.nn
    vocabulary, _, classes, towers = TASKS[arguments.task]
    phi = peer.activation(arguments.phi, torch, torch.nn.functional.gelu, torch.nn.functional.elu)
    divisor = peer.divisor(arguments.scale, arguments.phi, arguments.tokens)
    scale = (WIDTH // HEADS) ** -0.5

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.W_q, self.W_k, self.W_v, self.ff = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.drop = nn.Dropout(arguments.attention_dropout)

        def forward(self, x):
            batch, count, _ = x.shape
            q, k, v = (w(x).reshape(batch, count, HEADS, -1).transpose(1, 2) for w in (self.W_q, self.W_k, self.W_v))
            if arguments.sdpa:
                out = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=arguments.attention_dropout)
            elif arguments.linear:
                out = q @ (k.transpose(-2, -1) @ v) * (scale / divisor)
            else:
                scores = (q * scale) @ k.transpose(-2, -1)
                out = self.drop(scores.softmax(-1) if phi is None else phi(scores) * (1 / divisor)) @ v
            return self.ff(out.transpose(1, 2).reshape(batch, count, WIDTH))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2, self.mha = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention()
            drop = arguments.dropout
            self.drop = nn.Dropout(drop)
            self.mlp = nn.Sequential(
                nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Dropout(drop), nn.Linear(HIDDEN, WIDTH), nn.Dropout(drop)
            )

        def forward(self, x):
            x = x + self.drop(self.mha(self.norm1(x)))
            return x + self.mlp(self.norm2(x))

    class Lra(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(arguments.tokens, WIDTH)
            self.drop = nn.Dropout(arguments.dropout)
            self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
            self.norm = nn.LayerNorm(WIDTH)
            features = WIDTH * (1 if towers == 1 else 4)
            self.head = nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))

        def encode(self, ids):
            x = self.drop(self.words(ids) + self.places.weight)
            return self.norm(self.blocks(x)).mean(1)

        def forward(self, tokens):
            if towers == 1:
                return self.head(self.encode(tokens[:, 0]))
            a, b = self.encode(tokens[:, 0]), self.encode(tokens[:, 1])
            return self.head(torch.cat([a, b, a * b, a - b], 1))

    return Lra()


def main():
    parser = peer.parser(__doc__)
    parser.add_argument("--task", choices=sorted(TASKS), default="text")
    peer.add_sizes(parser, batch=8, tokens=0)
    parser.add_argument("--phi", default="x3")
    parser.add_argument("--scale", default="14")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--attention-dropout", type=float, default=0.0)
    for flag in ("--sdpa", "--linear", "--compile"):
        parser.add_argument(flag, action="store_true")
    arguments = parser.parse_args()
    if arguments.sdpa and arguments.phi != "softmax":
        parser.error("--sdpa computes softmax")
    if arguments.linear and (arguments.phi != "x" or arguments.attention_dropout > 0):
        parser.error("--linear is for --phi x without attention dropout")
    arguments.tokens = arguments.tokens or TASKS[arguments.task][1]
    torch, product = peer.torch_ready(arguments)
    imported = peer.status_mib("VmRSS")
    model = build(torch, arguments)
    model.train()
    optimizer = adamw(torch, model)
    run = torch.compile(model) if arguments.compile else model
    towers = TASKS[arguments.task][3]
    tokens = torch.randint(1, 16, (arguments.batch, towers, arguments.tokens))
    labels = torch.randint(TASKS[arguments.task][2], (arguments.batch,))
    loss_value = 0.0

    def subject():
        nonlocal loss_value
        start = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(run(tokens), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss_value = loss.item()
        return time.perf_counter() - start

    subject()
    subject()
    peak = peer.status_mib("VmHWM")
    measured = peer.measure_pairs(product, 3 * forward_flops(arguments) * arguments.batch, arguments, subject)
    values = {"step_ms": 1e3 * measured["seconds"], "samples_per_s": arguments.batch / measured["seconds"], **measured}
    values.update(peak_mib=peak, import_mib=imported, loss=loss_value)
    peer.report("pytorch", torch.__version__, "lra_step", arguments, values)


if __name__ == "__main__":
    main()

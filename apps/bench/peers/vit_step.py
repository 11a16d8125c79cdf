#!/usr/bin/env python3
"""polygrad_bench vit_step, in PyTorch: a plain pre-norm ViT with packed qkv, cross-entropy, AdamW. See peer.py.

--precision bf16: the forward runs under torch.autocast, the parameters stay f32. --compile: torch.compile of the model.
AdamW is PyTorch's fused one where the version has it for CPUs. In f16 no loss is scaled: only the time is looked at."""

import time

import peer
from vit import DEPTH, WIDTHS, forward_flops


def build(torch, arguments):
    nn = torch.nn
    width, heads = WIDTHS[arguments.model]
    patches = (arguments.image // arguments.patch) ** 2
    tokens = patches + 1
    phi = peer.activation(arguments.phi, torch, nn.functional.gelu, nn.functional.elu)
    divisor = peer.divisor(arguments.scale, arguments.phi, patches)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width)
            self.proj = nn.Linear(width, width)

        def forward(self, x):
            batch, count, _ = x.shape
            q, k, v = self.qkv(x).reshape(batch, count, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            if arguments.sdpa:
                out = nn.functional.scaled_dot_product_attention(q, k, v)
            else:
                scores = (q * (width // heads) ** -0.5) @ k.transpose(-2, -1)
                out = (scores.softmax(-1) if phi is None else phi(scores) * (1 / divisor)) @ v
            return self.proj(out.transpose(1, 2).reshape(batch, count, width))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1 = nn.LayerNorm(width, eps=1e-6)
            self.attn = Attention()
            self.norm2 = nn.LayerNorm(width, eps=1e-6)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            x = x + self.attn(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    class Vit(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch_embed = nn.Conv2d(3, width, arguments.patch, arguments.patch)
            self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
            self.pos_embed = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
            self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
            self.norm = nn.LayerNorm(width, eps=1e-6)
            self.head = nn.Linear(width, arguments.classes)

        def forward(self, images):
            x = self.patch_embed(images).flatten(2).transpose(1, 2)
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1) + self.pos_embed
            return self.head(self.norm(self.blocks(x))[:, 0])

    return Vit()


def adamw(torch, model):
    settings = {"lr": 1e-4, "weight_decay": 0.05}
    try:
        return torch.optim.AdamW(model.parameters(), fused=True, **settings)
    except (RuntimeError, TypeError):
        return torch.optim.AdamW(model.parameters(), **settings)


def main():
    parser = peer.parser(__doc__)
    parser.add_argument("--model", choices=sorted(WIDTHS), default="vit_tiny")
    peer.add_sizes(parser, image=64, patch=4, classes=200, batch=32)
    parser.add_argument("--phi", default="x3")
    parser.add_argument("--scale", default="auto")
    parser.add_argument("--precision", choices=["f32", "bf16", "f16"], default="f32")
    peer.add_device(parser)
    parser.add_argument("--sdpa", action="store_true")
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    if arguments.sdpa and arguments.phi != "softmax":
        parser.error("--sdpa computes softmax")
    torch, product = peer.torch_ready(arguments, arguments.precision)
    imported = peer.status_mib("VmRSS")
    model = build(torch, arguments).to(arguments.device)
    model.train()
    optimizer = adamw(torch, model)
    run = torch.compile(model) if arguments.compile else model
    images = torch.randn(arguments.batch, 3, arguments.image, arguments.image, device=arguments.device)
    labels = torch.randint(arguments.classes, (arguments.batch,), device=arguments.device)
    dtype = torch.bfloat16 if arguments.precision == "f32" else peer.torch_dtype(torch, arguments.precision)

    def step():
        with torch.autocast(arguments.device, dtype, enabled=arguments.precision != "f32"):
            loss = torch.nn.functional.cross_entropy(run(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    loss_value = 0.0

    def subject():
        nonlocal loss_value
        start = time.perf_counter()
        loss_value = step().item()
        return time.perf_counter() - start

    if arguments.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        step()
        step()
        peak = peer.cuda_mib(torch)
        subject_there = peer.Batches(torch, step)
    else:
        subject()
        subject()
        peak = peer.status_mib("VmHWM")
    measured = peer.measure_pairs(product, 3 * forward_flops(arguments) * arguments.batch, arguments,
                                  subject_there if arguments.device == "cuda" else subject)
    if arguments.device == "cuda":
        loss_value = step().item()
    values = {"step_ms": 1e3 * measured["seconds"], "images_per_s": arguments.batch / measured["seconds"], **measured}
    values.update(peak_mib=peak, import_mib=imported, loss=loss_value)
    peer.report("pytorch", torch.__version__, "vit_step", arguments, values)


if __name__ == "__main__":
    main()

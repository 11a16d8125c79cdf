"""What `make bench` measures: each work, with our programs and the peers' that do it. Read run.py first."""

from dataclasses import dataclass, field

VIT = "--image 64 --patch 4 --classes 200 --batch 32"
SHORT = "--batch 32 --heads 3 --tokens 257 --head-dim 64"
LONG = "--batch 4 --heads 2 --tokens 4096 --head-dim 32"


@dataclass
class Peer:
    """A script of peers/. `needs`: torch, compile or jax; where that is not there, the table says so."""

    name: str
    script: str
    options: str
    needs: str = "torch"
    environment: str = "best"


@dataclass
class Work:
    title: str
    ours: list  # (name, arguments of polygrad_bench); all others are compared with the first
    peers: list = field(default_factory=list)


def gemm(title, shape):
    return Work(title, [("polygrad", f"gemm {shape}")],
                [Peer("PyTorch", "gemm.py", shape), Peer("JAX", "jax_gemm.py", shape, "jax")])


def attention(phi, shape, title):
    options = f"--phi {phi} {shape}"
    peers = [Peer("PyTorch eager", "attention.py", options)]
    if phi == "softmax":
        peers.append(Peer("PyTorch scaled_dot_product_attention", "attention.py", options + " --sdpa"))
    else:
        peers.append(Peer("PyTorch eager, default environment", "attention.py", options, environment="default"))
    peers += [Peer("PyTorch torch.compile", "attention.py", options + " --compile", "compile"),
              Peer("JAX jit", "jax_attention.py", options, "jax")]
    return Work(title, [("polygrad", f"attention {options}")], peers)


def vit_step(phi, title):
    options = f"--phi {phi} {VIT} --scale 16"
    ours = [("polygrad", f"vit_step {options}"), ("polygrad, bf16", f"vit_step {options} --precision bf16")]
    peers = [Peer("PyTorch eager", "vit_step.py", options),
             Peer("PyTorch torch.compile", "vit_step.py", options + " --compile", "compile"),
             Peer("JAX jit", "jax_vit_step.py", options, "jax")]
    if phi == "softmax":
        sdpa = options + " --sdpa"
        peers += [Peer("PyTorch scaled_dot_product_attention", "vit_step.py", sdpa),
                  Peer("PyTorch scaled_dot_product_attention, torch.compile", "vit_step.py", sdpa + " --compile", "compile")]
    else:
        ours.append(("polygrad, --no-shortcuts", f"vit_step {options} --no-shortcuts"))
        bf16 = options + " --precision bf16"
        peers += [Peer("PyTorch eager, default environment", "vit_step.py", options, environment="default"),
                  Peer("PyTorch eager, bf16 autocast", "vit_step.py", bf16),
                  Peer("PyTorch torch.compile, bf16 autocast", "vit_step.py", bf16 + " --compile", "compile")]
    return Work(title, ours, peers)


def lra_step(phi, title):
    options = f"--task text --batch 8 --tokens 4096 --phi {phi}"
    ours = [("polygrad", f"lra_step {options}"),
            ("polygrad, attention dropout 0.1", f"lra_step {options} --attention-dropout 0.1")]
    peers = [Peer("PyTorch eager", "lra_step.py", options)]
    if phi == "softmax":
        peers.append(Peer("PyTorch scaled_dot_product_attention", "lra_step.py", options + " --sdpa"))
    if phi == "x":
        peers.append(Peer("PyTorch, the order q (kᵀ v) by hand", "lra_step.py", options + " --linear"))
    return Work(title, ours, peers)


def works():
    linear = f"--phi x {LONG}"
    return [
        gemm("gemm 8224 x 192 x 576", "--m 8224 --k 192 --n 576"),
        gemm("gemm 8224 x 192 x 768, B transposed", "--m 8224 --k 192 --n 768 --trans-b"),
        gemm("gemm 576 x 8224 x 192, A transposed", "--m 576 --k 8224 --n 192 --trans-a"),
        attention("x3", SHORT, "attention x³: batch 32, 3 heads, 257 tokens, width 64"),
        attention("softmax", SHORT, "attention softmax: batch 32, 3 heads, 257 tokens, width 64"),
        attention("x3", LONG, "attention x³: batch 4, 2 heads, 4096 tokens, width 32"),
        attention("softmax", LONG, "attention softmax: batch 4, 2 heads, 4096 tokens, width 32"),
        Work("attention x, in the order q (kᵀ v): batch 4, 2 heads, 4096 tokens, width 32",
             [("polygrad", f"attention {linear} --path linear")],
             [Peer("PyTorch, the order by hand", "attention.py", linear + " --linear"),
              Peer("PyTorch, the order by hand, torch.compile", "attention.py", linear + " --linear --compile", "compile"),
              Peer("JAX jit, the order by hand", "jax_attention.py", linear + " --linear", "jax")]),
        vit_step("x3", "training step x³/16: ViT-Tiny, 64², patch 4, 200 classes, batch 32"),
        vit_step("softmax", "training step softmax: ViT-Tiny, 64², patch 4, 200 classes, batch 32"),
        lra_step("x3", "training step x³/14: Long Range Arena, text, 4096 tokens, batch 8"),
        lra_step("x", "training step x/14: Long Range Arena, text, 4096 tokens, batch 8"),
        lra_step("softmax", "training step softmax: Long Range Arena, text, 4096 tokens, batch 8"),
    ]


# Ours alone: what no peer has, or what compares ours with itself. (what, arguments, variables)
ALONE = [
    ("attention x³, lengths 2048, 1024, 512, 256 in a batch", "attention --phi x3 --path tiled --batch 4 --heads 2 "
     "--tokens 2048 --head-dim 32 --lengths 2048,1024,512,256", {}),
    ("the same batch at full length", "attention --phi x3 --path tiled --batch 4 --heads 2 --tokens 2048 --head-dim 32", {}),
    ("attention x, linear path, 16384 tokens", "attention --phi x --path linear --batch 4 --heads 2 --tokens 16384", {}),
    ("attention x, linear path, 32768 tokens", "attention --phi x --path linear --batch 4 --heads 2 --tokens 32768", {}),
    ("LRA step x, linear path, 1 x 16384 tokens", "lra_step --task text --batch 1 --phi x --tokens 16384", {}),
    ("LRA step x, linear path, 1 x 32768 tokens", "lra_step --task text --batch 1 --phi x --tokens 32768", {}),
    ("LRA step x, linear path, 1 x 65536 tokens", "lra_step --task text --batch 1 --phi x --tokens 65536", {}),
    ("LRA step x³, ListOps, batch 32, lengths 500 to 1950", "lra_step --task listops --batch 32 --phi x3 --tokens 2000 "
     "--lengths 500,620,740,860,980,1150,1450,1950", {}),
    ("training step x³/16, 1 thread", f"vit_step --phi x3 --scale 16 {VIT} --threads 1", {}),
    ("training step x³/16, products by Eigen", f"vit_step --phi x3 --scale 16 {VIT}", {"POLYGRAD_GEMM": "eigen"}),
]

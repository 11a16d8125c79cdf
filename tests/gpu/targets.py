"""The parts that measure: the works of the target table, in turns with PyTorch where it is there."""

import json
import sys
import threading
from dataclasses import dataclass, field

from programs import ROOT
from runner import Failed

sys.path.insert(0, str(ROOT / "apps/bench/peers"))

import turns  # noqa: E402

ROUNDS = 5


@dataclass
class Work:
    """`ours`, `peers`: (name, arguments); others are compared with the first of ours. `judge(row, players)` adds the targets."""

    name: str
    ours: list
    peers: list
    judge: callable
    seconds: float = 60
    players: dict = field(default_factory=dict)


def vit(size, phi, precision="bf16"):
    scale = "" if phi == "softmax" else " --scale 16"
    return f"vit_step {size} --phi {phi}{scale} --precision {precision}"


def speed(row, players, other, what, must, aim, judged):
    """How many times as fast as `other` ours is; nothing where that is not there."""
    ours = players["polygrad"]
    if other in players and players[other].report and ours.report:
        row.must(what, ours.times_as_fast_as(players[other]), least=must, aim=aim, judged=judged)


def works(cpu):
    """What is measured, in this order. On the CPU: as small as can be, and nothing is judged."""
    tiny = "--model vit_tiny --image 8 --patch 8 --classes 4 --batch 1 --depth 1" if cpu else \
        "--model vit_tiny --image 64 --patch 4 --classes 200 --batch 1024"
    base = "--model vit_base --image 224 --patch 16 --classes 1000 --batch 256"
    long = "--batch 1 --heads 1 --tokens 64" if cpu else "--batch 4 --heads 16 --tokens 4096"
    wide = "--batch 1 --heads 1 --tokens 64" if cpu else "--batch 4 --heads 16 --tokens 4096"
    judged = not cpu

    def tiny_softmax(row, players):
        speed(row, players, "torch.compile, fused attention", "of torch.compile's speed", 0.7, 1.0, judged)

    def tiny_cubic(row, players):
        speed(row, players, "torch.compile", "of torch.compile's speed on x³", 1.2, 1.5, judged)
        speed(row, players, "polygrad, softmax", "of our softmax", 1.0, None, judged)

    def attention(row, players):
        speed(row, players, "fused attention, softmax", "of PyTorch's fused softmax", 1.0, None, judged)
        report = players["polygrad"].report
        batch, heads, tokens = report["batch"], report["heads"], report["tokens"]
        whole = batch * heads * tokens**2 * 2 / 2**20
        row.must("memory, of the N×N maps", report["peak_extra_mib"] / whole, most=0.25, judged=judged)
        row.must("of the matrix rate", report["ratio"], aim=0.5, judged=judged)

    def forward(row, players):
        speed(row, players, "FlashAttention-2, softmax", "of FlashAttention-2", 1.0, None, judged)
        row.must("of the matrix rate", players["polygrad"].report["ratio"], aim=0.65, judged=judged)

    def base_softmax(row, players):
        speed(row, players, "torch.compile, fused attention", "of torch.compile's speed", 0.7, 0.95, judged)

    def peer(options, more=""):
        script, *words = options.split()
        return [f"{script}.py", *words, *more.split()]

    softmax, cubic = vit(tiny, "softmax"), vit(tiny, "x3")
    attend = f"attention --phi {{}} {long} --head-dim {32 if cpu else 64} --precision bf16"
    ahead = f"attention --phi {{}} {wide} --head-dim {32 if cpu else 128} --precision bf16 --forward-only"
    plain = vit(base, "softmax")
    found = [
        Work("vit_tiny_softmax", [("polygrad", softmax)],
             [("torch.compile, fused attention", peer(softmax, "--sdpa --compile")), ("eager, fused attention", peer(softmax, "--sdpa"))],
             tiny_softmax),
        Work("vit_tiny_x3", [("polygrad", cubic), ("polygrad, softmax", softmax)],
             [("torch.compile", peer(cubic, "--compile")), ("eager", peer(cubic))], tiny_cubic),
        Work("attention_x3", [("polygrad", attend.format("x3")), ("polygrad, softmax", attend.format("softmax"))],
             [("fused attention, softmax", peer(attend.format("softmax"), "--sdpa")),
              ("FlashAttention-2, softmax", peer(attend.format("softmax"), "--sdpa --backend flash")),
              ("torch.compile", peer(attend.format("x3"), "--compile"))], attention),
        Work("attention_forward", [("polygrad", ahead.format("x3")), ("polygrad, softmax", ahead.format("softmax"))],
             [("FlashAttention-2, softmax", peer(ahead.format("softmax"), "--sdpa --backend flash")),
              ("cuDNN, softmax", peer(ahead.format("softmax"), "--sdpa --backend cudnn"))], forward),
        Work("vit_base", [("polygrad", plain)],
             [("torch.compile, fused attention", peer(plain, "--sdpa --compile")), ("eager, fused attention", peer(plain, "--sdpa"))],
             base_softmax, 80),
    ]
    return [work for work in found if not (cpu and work.name in ("vit_tiny_softmax", "vit_base"))]


class Peers:
    """PyTorch's players. They start one after another beside the parts before theirs: compilers need a while."""

    def __init__(self, check, chosen):
        self.check, self.chosen = check, chosen
        self.thread = threading.Thread(target=self._start, daemon=True)
        self.stopped = False
        for work in chosen:
            for name, words in work.peers:
                script = ROOT / "apps/bench/peers" / words[0]
                work.players[name] = turns.Player(name, [check.python[0], script, *words[1:], "--device", "cuda"])
        self.thread.start()

    def _start(self):
        for work in self.chosen:
            for player in list(work.players.values()):
                if not self.stopped:
                    player.start()

    def wait(self, row, seconds):
        """Until all are ready: what is measured must have the GPU for itself. Those that are not are left out."""
        self.thread.join(seconds)
        self.stopped = True
        players = [(work.name, player) for work in self.chosen for player in work.players.values()]
        for _, player in players:
            if not player.ready:
                player.end("not ready in time")
        row.numbers.append(f"{sum(player.ready for _, player in players)} of {len(players)} ready")
        row.details["failures"] = {f"{work}: {player.name}": player.failure for work, player in players if player.failure}

    def stop(self):
        self.stopped = True
        for work in self.chosen:
            for player in work.players.values():
                player.end("stopped")  # also one that the thread is starting now


def measured_line(check, *words):
    """All lines of one call of ours."""
    done = check.runner.run([check.programs.require("polygrad_bench"), *words, "--device", "cuda:0", "--quiet",
                             *(["--ceiling", "32"] if check.cpu else [])], check.programs.variables)
    return [json.loads(line) for line in done.stdout.splitlines()]


def measure(check, row, work):
    """Plays the work's rounds, and writes down what each player reached."""
    turns.TURN_SECONDS = max(1.0, check.runner.left())
    small = ["--ceiling", "32"] if check.cpu else []
    program = check.programs.require("polygrad_bench")
    ours = {name: turns.Player(name, [program, *words.split(), "--device", "cuda:0", *small], check.programs.variables)
            for name, words in work.ours}
    everyone = [*ours.values(), *work.players.values()]
    limit = f"no end within the time limit of {check.runner.part_seconds:.0f} s"
    timer = threading.Timer(check.runner.left(), lambda: [player.end(limit) for player in everyone])
    timer.start()
    try:
        turns.play([*ours.values(), *[player for player in work.players.values() if player.ready]], 1 if check.cpu else ROUNDS)
    finally:
        timer.cancel()
        for player in everyone:
            player.stop()
    players = {**ours, **work.players}
    row.details["players"] = {name: player.report or {"failure": player.failure} for name, player in players.items()}
    if not ours["polygrad"].report:
        raise Failed(f"polygrad: {ours['polygrad'].failure}")
    for name, player in players.items():
        if player.report:
            report = player.report
            time = report.get("step_ms") or report["forward_ms"] + report["backward_ms"]
            row.numbers.append(f"{name} {time:.3g} ms")
        else:
            row.numbers.append(f"{name}: {player.failure}")
    work.judge(row, players)


def part_of(work):
    return lambda check, row: measure(check, row, work)


def linear(check, row):
    """φ = x by the linear path: twice the tokens take twice the time."""
    sizes = (32, 64) if check.cpu else (16384, 32768, 65536)
    heads = ["--heads", "1", "--head-dim", "16"] if check.cpu else ["--heads", "8", "--head-dim", "64"]
    times = []
    for tokens in sizes:
        (line,) = measured_line(check, "attention", "--phi", "x", "--path", "linear", "--batch", "1", *heads, "--tokens",
                                str(tokens), "--pairs", "1" if check.cpu else "3")
        times.append(line["forward_ms"] + line["backward_ms"])
        row.numbers.append(f"N = {tokens}: {times[-1]:.3g} ms")
        row.details[str(tokens)] = line
    row.must("the longest against half of it", times[-1] / times[-2], most=2.3, judged=not check.cpu)


def product(check, row):
    """The matrix rate in each precision; f32 is f32."""
    size = "48" if check.cpu else "4096"
    for dtype in ("f32", "bf16", "f16"):
        (line,) = measured_line(check, "gemm", "--m", size, "--k", size, "--n", size, "--dtype", dtype, "--pairs",
                                "1" if check.cpu else "3")
        row.details[dtype] = line
        row.numbers.append(f"{dtype} {1e-3 * line['ceiling_gflops']:.3g} TFLOP/s")
        row.must(f"error in {dtype}", line["relative_error"], most=1e-5 if dtype == "f32" else 1e-2)


def ops(check, row):
    """Every op beside a copy of the same bytes."""
    shape = ["--shape", "2x3x8x8"] if check.cpu else []
    chosen = ["op", "--name", "layer_norm"] if check.cpu else ["ops"]
    lines = measured_line(check, *chosen, *shape, "--pairs", "1")
    row.details["ops"] = lines
    slowest = sorted(lines, key=lambda line: line["copy_share"])[:3]
    row.numbers.append(f"{len(lines)} ops; least of a copy's speed: "
                       + ", ".join(f"{line['name']} {line['copy_share']:.2f}" for line in slowest))

#!/usr/bin/env python3
"""What `make bench` does with programs: they take turns, failures are told by their reason, and the page has all of them.

bench_turns.py PATH_OF_POLYGRAD_BENCH. No peer is needed: ours plays the peer too."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "apps/bench"), str(ROOT / "apps/bench/peers")]

import environment  # noqa: E402
import page  # noqa: E402
import turns  # noqa: E402
import works  # noqa: E402


def test_turns(bench):
    small = [bench, "gemm", "--m", "64", "--threads", "1"]
    players = [turns.Player("ours", small), turns.Player("peer", small), turns.Player("broken", [bench, "gemm", "--m", "0"]),
               turns.Player("absent", [bench + "-is-not-there"])]
    turns.play(players, 2)
    ours, peer, broken, absent = players
    for player in (ours, peer):
        assert not player.failure, player.failure
        assert [turn["turn"] for turn in player.turns] == [1, 2]
        assert player.report["bench"] == "gemm" and player.report["m"] == 64
    assert 0.05 < ours.times_as_fast_as(peer) < 20
    assert "--m 0" in broken.failure and broken.report is None
    assert "not-there" in absent.failure and absent.report is None
    return ours, peer, broken, absent


def test_silent_program_is_ended():
    seconds, turns.START_SECONDS = turns.START_SECONDS, 0.3
    player = turns.Player("silent", ["sleep", "100"])  # which does not know --turns, and ends at once or never
    player.start()
    assert player.failure and not player.ready
    turns.START_SECONDS = seconds


def lines_of(*command):
    result = subprocess.run([*command, "--pairs", "1", "--quiet"], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_page(players, bench):
    ours, peer, broken, absent = players
    rows = [{**ours.report, "name": "polygrad"},
            {**peer.report, "name": "a peer", "peer": "pytorch", "version": "0.0", "environment": "best", "parts": "thp",
             "settings": "A=1", "polygrad_is": 1.5, "ceiling_of_ours": 0.5},
            {"name": "broken", "failure": broken.failure}, {"name": "absent", "failure": absent.failure}]
    results = {"rounds": 2, "threads": 1, "minutes": 0.1, "machine": page.machine(), "version": "polygrad_bench 0",
               "alone": [{**ours.report, "name": "alone"}], "ops": lines_of(bench, "op", "--name", "gelu", "--shape", "8x8") +
               lines_of(bench, "op", "--name", "sgd_step", "--shape", "8x8"),
               "ladders": {"layer_norm": lines_of(bench, "ladder", "--name", "layer_norm")},
               "works": [{"title": "a product", "rows": rows}], "tune": {"best": "thp", "rows": [{"environment": "thp", "against": "default", "gain": 1.25}]}}
    text = page.page(results)
    for said in ("1.50 × as fast", "| broken | not measured: ", "| absent | not measured: ", "pytorch 0.0", "0.50 to 0.50", "A=1",
                 "| alone | ", "| unary | gelu | 8x8 | ", "| optim_step | sgd_step | 8x8 | ", "| thp | default | 1.250 |",
                 "fused with the product"):
        assert said in text, said
    table = list(page.text_table(rows))
    assert len(table) == 4 and "not measured" in table[3]
    assert str(ROOT) not in text
    assert not re.search(rf"\b{re.escape(os.uname().nodename)}\b", page.machine())


def test_environments():
    assert environment.variables("default", 2) == {}
    assert environment.variables("keep+thp", 2)["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    with tempfile.TemporaryDirectory() as folder:
        environment.BEST_FILE = Path(folder) / "best"
        assert environment.resolve("best") in environment.FALLBACK
        environment.BEST_FILE.write_text("keep\n")
        assert environment.resolve("best") == "keep"
    try:
        environment.variables("nonsense", 2)
    except SystemExit as error:
        assert "nonsense" in str(error)
    else:
        raise AssertionError("an unknown environment is taken")


def test_works():
    for work in works.works():
        for peer in work.peers:
            assert (ROOT / "apps/bench/peers" / peer.script).exists(), peer.script
            assert peer.needs in ("torch", "compile", "jax")


def main():
    players = test_turns(sys.argv[1])
    test_silent_program_is_ended()
    test_page(players, sys.argv[1])
    test_environments()
    test_works()


if __name__ == "__main__":
    main()

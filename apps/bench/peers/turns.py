"""Programs that measure in turns: each runs alone, waits for a line, measures once, and says what it measured.

`make bench` and tune.py compare programs on a machine whose speed drifts from second to second. So all of them are
started, and then play in rounds: A B C A B C ...; what is compared lies seconds apart, and a median over the rounds forgets
what disturbed one of them. The programs are polygrad_bench and the scripts of this folder, with --turns (peer.py).
"""

import json
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

START_SECONDS = 240  # compilers need a while
TURN_SECONDS = 90
PAUSE_SECONDS = 0.2  # threads of the last one that wait actively come to rest


class Player:
    """A program that takes turns. A failure is a text in `failure`; then it takes no more."""

    def __init__(self, name, command, variables=None):
        self.name, self.command = name, [str(word) for word in command]
        self.variables = variables or {}  # of its environment, beside ours
        self.turns, self.report, self.failure, self.process, self.ready = [], None, None, None, False
        self.ended = None  # why another thread ended it
        self.errors = tempfile.TemporaryFile(mode="w+")

    def start(self):
        """Starts it, and waits until it is warm. One after another: OpenMP's threads wait actively for each other, and stand
        in the way of those of the next program that starts meanwhile."""
        if self.process or self.failure:
            return
        try:
            self.process = subprocess.Popen([*self.command, "--turns"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=self.errors, text=True, start_new_session=True,
                                            env={**os.environ, **self.variables})
        except OSError as error:
            self.failure = f"{Path(self.command[0]).name}: {error.strerror}"  # without the folder: it goes into the page
            return
        if self.ended:
            self.stop()  # meanwhile
        self.ready = self._read(START_SECONDS) is not None

    def _read(self, seconds):
        timer = threading.Timer(seconds, self._kill)
        timer.start()
        line = self.process.stdout.readline()
        in_time = timer.is_alive()
        timer.cancel()
        if line:
            return json.loads(line)
        self.errors.seek(0)
        told = [text for text in self.errors.read().splitlines() if text.strip()]
        error = next((text for text in told if text.startswith("error:")), told[-1] if told else "it ended without a word")
        self.failure = self.ended or (error.removeprefix("error: ") if in_time else f"no answer within {seconds} s")
        self.stop()
        return None

    def _ask(self, word, seconds):
        try:
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended: reading says why
        return self._read(seconds)

    def take_turn(self):
        self.start()
        if self.ready and not self.failure:
            pair = self._ask("turn", TURN_SECONDS)
            if pair:
                self.turns.append(pair)

    def finish(self):
        """Its own line, with the medians and what else it counts."""
        if self.turns and not self.failure:
            self.report = self._ask("end", TURN_SECONDS)
        self.stop()
        return self.report

    def _kill(self):
        if self.process.returncode is None:  # not waited for yet: its number is still its own
            try:
                os.killpg(self.process.pid, signal.SIGKILL)  # compilers have children
            except ProcessLookupError:
                pass

    def stop(self):
        if self.process:
            self._kill()
            self.process.wait()

    def end(self, reason):
        """For another thread: it takes no more turns, and a read that waits for it fails."""
        self.ended = self.failure = self.failure or reason
        self.stop()

    def median(self, key):
        return statistics.median(turn[key] for turn in self.turns)

    def gains_over(self, other):
        """How many times as long the other took, in each round that both played."""
        return [b["seconds"] / a["seconds"] for a, b in zip(self.turns, other.turns)]

    def times_as_fast_as(self, other):
        return statistics.median(self.gains_over(other))


def play(players, rounds):
    for player in players:
        player.start()
    for turn in range(rounds):
        # Each round begins with another one, so that nobody always comes after the same neighbour.
        first = turn % len(players)
        for player in players[first:] + players[:first]:
            time.sleep(PAUSE_SECONDS)
            player.take_turn()
    for player in players:
        player.finish()

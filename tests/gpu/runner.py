"""Parts of a check: each has a time limit, and none stops the others."""

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field


END_SECONDS = 3  # for last words


class Failed(Exception):
    """What a part expected is not so; the text says what."""


class Skipped(Exception):
    """A part can't run here; the text says why."""


@dataclass
class Row:
    """What became of a part. `result`: passed, failed or skipped. `numbers`: short texts for the table."""

    name: str
    result: str = "passed"
    seconds: float = 0.0
    numbers: list = field(default_factory=list)
    reason: str = ""
    details: dict = field(default_factory=dict)

    def must(self, what, value, least=None, most=None, aim=None, judged=True):
        """A number against its target: at least `least`, or at most `most` (or neither); `aim` is for the reader."""
        bound = f">= {least:g}" if least is not None else f"<= {most:g}" if most is not None else ""
        self.details.setdefault("targets", []).append(
            {"what": what, "value": value, "must": bound, "aim": aim, "judged": judged})
        told = ", ".join(([bound] if bound else []) + ([f"aim {aim:g}"] if aim is not None else [])) if judged else "not judged"
        self.numbers.append(f"{what} {value:.3g} ({told})")
        if judged and bound and not (value >= least if least is not None else value <= most):  # NaN is never enough
            self.result = "failed"
            self.reason = (self.reason + "; " if self.reason else "") + f"{what} is {value:.3g}, expected {bound}"


class Runner:
    """Runs commands within the limits of the part that is running and of the whole check."""

    def __init__(self, total_seconds):
        self.start = time.monotonic()
        self.end = self.start + total_seconds
        self.part_end = self.end
        self.most = total_seconds  # for a part
        self.part_seconds = total_seconds

    def left(self):
        return max(0.0, min(self.part_end, self.end) - time.monotonic())

    def run(self, command, variables=None, most=None, check=True):
        """The finished process, with its streams as text. A process that outlives the limit is ended, with its children."""
        limit = min(self.left(), most or 1e9)
        name = os.path.basename(str(command[0]))
        try:
            process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
                                       env={**os.environ, **(variables or {})})
        except OSError as error:
            raise Failed(f"{name}: {error.strerror}") from None
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            told = last_words(subprocess.CompletedProcess(command, -signal.SIGKILL, *end(process)))
            raise Failed(f"{name}: no end within the time limit of {self.part_seconds:.0f} s: {told}") from None
        except BaseException:  # the check itself is being ended
            end(process)
            raise
        finished = subprocess.CompletedProcess(command, process.returncode, out, err)
        if check and process.returncode != 0:
            raise Failed(f"{name} {command[1] if len(command) > 1 else ''}: exit {process.returncode}: {last_words(finished)}")
        return finished

    def part(self, name, seconds, function):
        """The row of function(row), whatever happens in it."""
        row = Row(name)
        began = time.monotonic()
        self.part_seconds = min(seconds, self.most, max(0.0, self.end - began))
        self.part_end = began + self.part_seconds
        try:
            if self.part_seconds < 1:
                raise Skipped("no time left")
            function(row)
        except Skipped as reason:
            row.result, row.reason = "skipped", str(reason)
        except Failed as reason:
            row.result, row.reason = "failed", str(reason)
        except Exception as error:  # of the check itself: it must not take the other parts along
            row.result, row.reason = "failed", f"{type(error).__name__}: {error}"
        row.seconds = round(time.monotonic() - began, 1)
        return row


def end(process):
    """Ends it with its children; what it said on its two streams. SIGTERM first: doctest then names the test that ran."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            said = process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired as late:  # the bytes so far
            said = [(stream or b"").decode(errors="replace") for stream in (late.stdout, late.stderr)]
    return said


def last_words(finished):
    """The line that says what went wrong: "error: …", or else the last one; before it the test case that it is about."""
    lines = [line.strip() for line in (finished.stderr + "\n" + finished.stdout).splitlines() if line.strip()]
    error = next((line for line in lines if line.startswith("error:") or " error: " in line.lower()), None)
    test = next((f"{line.removeprefix('TEST CASE:').strip()}: " for line in lines if line.startswith("TEST CASE:")), "")
    return (test + (error or (lines[-1] if lines else "without a word")))[:300]


def table(rows):
    """The rows as lines of text."""
    width = max(len(row.name) for row in rows)
    for row in rows:
        told = "; ".join(([row.reason] if row.reason else []) + row.numbers)
        yield f"{row.name:{width}}  {row.result:7}  {row.seconds:6.1f} s  {told}"

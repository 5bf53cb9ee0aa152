"""`python -m benchmarks.inspection`: how fast `loadgen inspect` reads a large trace, and in how much memory.

It makes a trace in Mooncake's format, 5 GB unless `--size` says otherwise, in a folder outside of the repository, has
processes of their own inspect its beginning (1 % and 10 %) and all of it, tells peak memory and MB/s of each, and what
the estimated hit rate is beside the true one, which the trace is made with. Then it deletes the trace.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

BLOCK = 512
CONVERSATIONS = 2000  # that go on at once
LONGEST = 250  # blocks
SYSTEM_PROMPTS = 50
RATE = 10.0  # requests/s, by day twice as many
PARTS = (0.01, 0.1, 1.0)


@dataclass
class Made:
    """What is known of a trace because it was made so."""

    requests: int = 0
    input_tokens: int = 0
    found_tokens: int = 0  # in full blocks, by an infinite cache

    @property
    def rate(self) -> float:
        return self.found_tokens / self.input_tokens


class Conversations:
    """Prompts that begin with one of a few system prompts and go on from turn to turn, until they are too long."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._next = 0
        self._systems = [self._ids(1 + number % 4) for number in range(SYSTEM_PROMPTS)]
        self._weights = list(accumulate(1 / (number + 1) for number in range(SYSTEM_PROMPTS)))
        self._used: set[int] = set()  # system prompts that came
        self._going: list[list[str]] = [[] for _ in range(CONVERSATIONS)]

    def _ids(self, count: int) -> list[str]:
        self._next += count
        return list(map(str, range(self._next - count, self._next)))

    def prompt(self, made: Made) -> tuple[int, str]:
        """The next prompt: its tokens, and its ids as text."""
        number = int(self._random.random() * CONVERSATIONS)
        conversation = self._going[number]
        known = len(conversation)
        if not known:
            (chosen,) = self._random.choices(range(SYSTEM_PROMPTS), cum_weights=self._weights)
            conversation += self._systems[chosen]
            known = len(conversation) if chosen in self._used else 0
            self._used.add(chosen)
        conversation += self._ids(1 + int(self._random.expovariate(0.2)))
        short = 1 + int(self._random.random() * (BLOCK - 1))  # of an id that does not come again
        tokens = BLOCK * len(conversation) + short
        text = ",".join((*conversation, *self._ids(1)))
        made.requests += 1
        made.input_tokens += tokens
        made.found_tokens += BLOCK * known
        if len(conversation) > LONGEST or self._random.random() < 0.1:
            self._going[number] = []
        return tokens, text


def lines(made: Made, seed: int = 1) -> Iterator[bytes]:
    """The lines of a trace without end; `made` is kept up to what was taken."""
    conversations, random_ = Conversations(seed), random.Random(seed + 1)
    milliseconds = 0.0
    while True:
        rate = RATE * (2 if milliseconds % 86_400_000 < 43_200_000 else 1)
        milliseconds += random_.expovariate(rate) * 1000
        tokens, ids = conversations.prompt(made)
        output = 1 + int(random_.expovariate(1 / 300))
        yield (
            f'{{"timestamp": {int(milliseconds)}, "input_length": {tokens}, "output_length": {output}, '
            f'"hash_ids": [{ids}]}}\n'
        ).encode()


def make(file: IO[bytes], size: int, marks: Sequence[int]) -> dict[int, Made]:
    """Write at least `size` bytes; returns what was made when the file had each of `marks` bytes."""
    made, states, written = Made(), {}, 0
    left = sorted(marks)
    for line in lines(made):
        file.write(line)
        written += len(line)
        while left and written >= left[0]:
            states[left.pop(0)] = Made(made.requests, made.input_tokens, made.found_tokens)
        if written >= size:
            return states
    raise AssertionError("lines do not end")


def inspect(path: Path, requests: int) -> dict[str, Any]:
    """Its first requests, by a process of its own: what `--json` tells, seconds, and the process's peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "told.json"
        arguments = ["--sessions", str(requests), "--no-plots", "--json", str(out)]
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "loadgen.cli", "inspect", str(path), *arguments], stdout=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, "loadgen inspect")
        file = json.loads(out.read_bytes())["files"][0]
    return {
        "bytes": file["bytes_read"],
        "requests": file["statistics"]["lengths"]["requests"],
        "seconds": seconds,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "peak_bytes": used.ru_maxrss * 1024,
        "hit": next(hit for hit in file["statistics"]["sharing"]["hits"] if hit["block_size"] == BLOCK),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Make, inspect, tell, delete."""
    parser = argparse.ArgumentParser(prog="benchmarks.inspection", description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=float, default=5.0, metavar="GB", help="of the trace (default: 5)")
    parser.add_argument("--folder", type=Path, default=None, help="where to put it (default: the system's)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the figures to FILE")
    arguments = parser.parse_args(argv)
    size = int(arguments.size * 1e9)
    figures = []
    with tempfile.NamedTemporaryFile(suffix=".jsonl", prefix="inspection-", dir=arguments.folder) as file:
        started = time.perf_counter()
        states = make(file.file, size, [int(size * part) for part in PARTS])
        file.flush()
        seconds = time.perf_counter() - started
        print(f"made {size / 1e9:g} GB in {seconds:.0f} s: {states[size].requests:,} requests", file=sys.stderr)
        print("| read | requests | seconds | MB/s | MB per processor second | peak memory | hit rate, told | true |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for made in states.values():
            figure = inspect(Path(file.name), made.requests)
            hit = figure["hit"]
            megabytes = figure["bytes"] / 1e6
            print(
                f"| {megabytes:,.0f} MB | {figure['requests']:,} | {figure['seconds']:.1f} "
                f"| {megabytes / figure['seconds']:.1f} | {megabytes / figure['processor_seconds']:.1f} "
                f"| {figure['peak_bytes'] / 2**20:.0f} MiB "
                f"| {hit['rate']:.2%} ± {2 * hit['rate_error']:.2%} | {made.rate:.2%} |",
                flush=True,
            )
            figures.append({**figure, "true_rate": made.rate})
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

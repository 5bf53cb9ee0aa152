"""`python -m benchmarks.vllm_log --url URL --log FILE`: what is read of a vLLM server beside the lines of its own log.

vLLM logs what it did every ten seconds. For each line that comes while this runs, the looks at /metrics from the line
before to this one are laid beside it: rates over that time, gauges at the nearest look. A log's line and a look are
never of one moment, so the gauges of the looks around it are told as a range.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.compare import written_json
from engine.cli import number
from servers.looks import Look
from servers.measures import measure
from servers.reading import read
from tui.sources.items import Item, Scrape
from tui.sources.poller import Poller
from tui.sources.targets import HttpSettings, server_url, target

EVERY = 0.25  # seconds between two looks
AROUND = 0.75  # seconds of a line whose looks count as its gauges
_LINE = re.compile(
    rb"prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s, Running: (\d+) reqs, "
    rb"Waiting: (\d+) reqs, (?:CPU|GPU) KV cache usage: ([\d.]+)%, Prefix cache hit rate: ([\d.]+)%"
)


@dataclass(frozen=True, slots=True)
class Line:
    """What vLLM logged; rates in tokens/s over the time since the line before, shares in percent."""

    time: float
    prompt_rate: float
    generation_rate: float
    running: int
    waiting: int
    kv_usage: float
    hit_rate: float


@dataclass(frozen=True, slots=True)
class Pair:
    """A line, and what the looks say of the same time: rates, and the least and the most of each gauge around it."""

    line: Line
    prompt_rate: float
    generation_rate: float
    running: tuple[float, float]
    waiting: tuple[float, float]
    kv_usage: tuple[float, float]
    hit_rate: float | None


def parse(text: bytes, now: float) -> Line | None:
    """A line of the log, if it is one of these."""
    found = _LINE.search(text)
    if found is None:
        return None
    prompt, generation, running, waiting, usage, hits = found.groups()
    return Line(now, float(prompt), float(generation), int(running), int(waiting), float(usage), float(hits))


def beside(before: Line, line: Line, looks: Sequence[Look]) -> Pair | None:
    """None where too few looks are there."""
    inside = [look for look in looks if look.reading is not None and before.time - EVERY <= look.time <= line.time]
    near = [look for look in looks if look.reading is not None and abs(look.time - line.time) <= AROUND]
    if len(inside) < 2 or not near:
        return None
    first, last = inside[0], inside[-1]
    assert first.reading is not None
    assert last.reading is not None
    grown = measure(first.reading, last.reading, last.time - first.time)
    gauges = [look.reading.totals() for look in near if look.reading is not None]

    def spread(term: str, times: float = 1.0) -> tuple[float, float]:
        values = [one[term] * times for one in gauges]
        return min(values), max(values)

    computed = grown.rate("computed_prompt_tokens")
    return Pair(
        line,
        0.0 if computed is None else computed,
        grown.rate("generation_tokens") or 0.0,
        spread("running"),
        spread("waiting"),
        spread("kv_usage", 100.0),
        None if grown.hit_rate is None else grown.hit_rate * 100,
    )


async def follow(url: str, log: Path, seconds: float) -> list[Pair]:
    """Look and read for so long."""
    kept, lines, pairs = list[Look](), list[Line](), list[Pair]()

    def take(item: Item) -> None:
        if isinstance(item, Scrape):
            kept.append(Look(item.time, read(item.text)))

    polling = asyncio.create_task(Poller(target(url), HttpSettings(), take, 0, EVERY).run())
    end = time.monotonic() + seconds
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            while time.monotonic() < end:
                await asyncio.sleep(0.02)
                while text := file.readline():
                    if (line := parse(text, time.monotonic())) is not None:
                        lines.append(line)
                if len(lines) > 1 + len(pairs) and time.monotonic() > lines[len(pairs) + 1].time + AROUND:
                    pair = beside(lines[len(pairs)], lines[len(pairs) + 1], kept)
                    if pair is None:
                        raise SystemExit("benchmarks.vllm_log: error: --url: no metrics were read there")
                    pairs.append(pair)
    finally:
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
    return pairs


def table(pairs: Sequence[Pair]) -> Table:
    whole = Table(title="vLLM's log / what was read of it", title_justify="left")
    for heading in ("computed tok/s", "generated tok/s", "running", "waiting", "KV %", "hit rate of the window"):
        whole.add_column(heading, no_wrap=True)

    def gauge(logged: float, seen: tuple[float, float]) -> str:
        return f"{logged:g} / {seen[0]:.3g}..{seen[1]:.3g}"

    for pair in pairs:
        line = pair.line
        whole.add_row(
            f"{line.prompt_rate:.1f} / {pair.prompt_rate:.1f}",
            f"{line.generation_rate:.1f} / {pair.generation_rate:.1f}",
            gauge(line.running, pair.running),
            gauge(line.waiting, pair.waiting),
            gauge(line.kv_usage, pair.kv_usage),
            f"{line.hit_rate:.1f} of all / " + ("—" if pair.hit_rate is None else f"{pair.hit_rate:.1f}"),
        )
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.vllm_log", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--url", type=server_url, required=True, help="of the server")
    parser.add_argument("--log", type=Path, required=True, metavar="FILE", help="that it writes")
    parser.add_argument("--seconds", type=number(15.0, 3600.0), default=60.0, metavar="N", help="default: 60")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    arguments = parser.parse_args(argv)
    errors = Console(stderr=True)
    try:
        pairs = asyncio.run(follow(arguments.url, arguments.log, arguments.seconds))
    except OSError as error:
        errors.print(f"benchmarks.vllm_log: error: --log {arguments.log}: {error.strerror}", highlight=False)
        return 2
    except KeyboardInterrupt:
        return 130
    Console(width=None if sys.stdout.isatty() else 140).print(table(pairs))
    if arguments.json is None:
        return 0
    return written_json(arguments.json, [asdict(pair) for pair in pairs], errors, "benchmarks.vllm_log")


if __name__ == "__main__":
    sys.exit(main())

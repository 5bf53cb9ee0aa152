"""`python -m benchmarks.fleet`: what paged-top costs while it shows a fleet, and what a server that hangs does to the
others.

The servers are stand-ins in a process of their own, with pages as long as vLLM's. The screen runs in a pseudo-terminal
of 160×48; then the same servers are polled without one, and the times between the looks at each are told.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.compare import tell_if_busy, written_json
from benchmarks.report import machine
from benchmarks.screen import ROOT, Cost, cost
from benchmarks.terminal import COLUMNS, LINES, ScreenError
from engine.cli import between, number
from tui.sources.items import Item, Scrape
from tui.sources.stretch import MOST_CPU
from tui.sources.targets import HttpSettings, target
from tui.sources.watch import Watch

CPU_AIM = 0.15  # of a core, of ten
SHOWS = "vLLM"  # on the screen once a server was found
FIND_SECONDS = 5.0  # before anything is counted
MANY, SETTLE_SECONDS = 100, 40.0  # servers from which on looks are rarer, and until it is known how rare


@dataclass(frozen=True, slots=True)
class Looks:
    """Of the servers that answer: how many looks each had, and the times between them in seconds."""

    servers: int
    fewest: int
    median: float
    longest: float


@dataclass(frozen=True, slots=True)
class Found:
    """One fleet: `hanging` of its servers never answer."""

    servers: int
    hanging: int
    cost: Cost
    looks: Looks


@contextmanager
def stand_ins(servers: int, hanging: int) -> Iterator[list[str]]:
    """Their addresses. Raises ScreenError."""
    command = [sys.executable, "-m", "tests.servers.stand_in", "--count", str(servers), "--hanging", str(hanging)]
    command += ["--alike"] if servers > MANY else []
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        urls = [process.stdout.readline().strip() for _ in range(servers)]
        if not all(urls):
            raise ScreenError("the stand-in servers did not start")
        yield urls
    finally:
        process.kill()
        process.wait()


async def looks_at(urls: Sequence[str], hanging: int, seconds: float) -> Looks:
    """Watch without a screen; the first `hanging` are not counted."""
    heard: dict[int, list[float]] = {source: [] for source in range(hanging, len(urls))}

    def take(item: Item) -> None:
        if isinstance(item, Scrape) and item.source in heard:
            heard[item.source].append(time.monotonic())

    watch = Watch([target(url) for url in urls], HttpSettings())
    for source in watch.sources:
        source.listener = take
    watching = asyncio.create_task(watch.run())
    await asyncio.sleep(settle_seconds(len(urls)))
    for times in heard.values():
        times.clear()
    await asyncio.sleep(seconds)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    between_looks = [later - one for times in heard.values() for one, later in pairwise(times)]
    if not between_looks:
        raise ScreenError("no server was looked at twice")
    return Looks(len(heard), min(map(len, heard.values())), statistics.median(between_looks), max(between_looks))


def settle_seconds(servers: int) -> float:
    """Until what is measured goes on as it is."""
    return FIND_SECONDS if servers <= MANY else SETTLE_SECONDS


def measure(servers: int, hanging: int, seconds: float, folder: Path) -> Found:
    """Raises ScreenError."""
    with stand_ins(servers, hanging) as urls:
        arguments = [argument for url in urls for argument in ("--url", url)]
        spent = cost(arguments, SHOWS, seconds, folder, settle_seconds(servers))
        return Found(servers, hanging, spent, asyncio.run(looks_at(urls, hanging, seconds)))


def table(measured: Sequence[Found]) -> Table:
    whole = Table(
        title=f"a fleet, a look a second at each unless that costs too much, in {COLUMNS}×{LINES}", title_justify="left"
    )
    for heading in ("servers", "of a core", "aim", "frames", "peak memory", "fewest looks", "between looks"):
        whole.add_column(heading, no_wrap=True)
    for one in measured:
        whole.add_row(
            f"{one.servers}" + (f", {one.hanging} hanging" if one.hanging else ""),
            f"{one.cost.cpu:.1%}",
            f"< {CPU_AIM if one.servers <= MANY else MOST_CPU:.0%}",
            f"{one.cost.frames:.1f}/s",
            f"{one.cost.peak_bytes / 2**20:,.0f} MiB",
            f"{one.looks.fewest}",
            f"{one.looks.median:.3f} s, at most {one.looks.longest:.3f}",
        )
    return whole


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.fleet", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--servers", type=between(1, 1000), default=10, metavar="N", help="default: 10")
    add("--seconds", type=number(1.0, 3600.0), default=60.0, metavar="N", help="measured of each (default: 60)")
    add("--json", type=Path, metavar="FILE", help="write the figures here")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    errors, code = Console(stderr=True), 0
    measured: list[Found] = []
    tell_if_busy(errors)
    with tempfile.TemporaryDirectory(prefix="paged-top-fleet-") as name:
        try:
            for hanging in (0, 1):
                servers = arguments.servers + hanging
                errors.print(f"{servers} servers, {hanging} of them hanging", highlight=False)
                measured.append(measure(servers, hanging, arguments.seconds, Path(name)))
        except KeyboardInterrupt:
            code = 130
        except ScreenError as error:
            errors.print(f"benchmarks.fleet: error: {error}", highlight=False, markup=False)
            code = 1
    if measured:
        Console(width=None if sys.stdout.isatty() else 120).print(table(measured))
    if arguments.json is not None:
        facts = {"machine": machine(), "measured": [asdict(one) for one in measured]}
        code = written_json(arguments.json, facts, errors, "benchmarks.fleet") or code
    return code


if __name__ == "__main__":
    sys.exit(main())
